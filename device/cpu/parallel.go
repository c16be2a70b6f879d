package cpu

import (
	"context"
	"sync"
	"sync/atomic"
)

// workers is a set of goroutines that live as long as their device. The caller
// of run always works too, so that a job is done even if no worker is free,
// and GOMAXPROCS=1 cannot hang.
type workers struct {
	threads int
	jobs    chan *job
	quit    chan struct{}
	once    sync.Once
}

// job is a number of chunks to be done by whoever comes.
type job struct {
	ctx    context.Context
	done   <-chan struct{} // ctx.Done()
	chunks int64
	next   atomic.Int64
	do     func(chunk int)
	wg     sync.WaitGroup
}

func startWorkers(threads int) *workers {
	w := &workers{threads: threads, jobs: make(chan *job), quit: make(chan struct{})}
	for range threads - 1 {
		go w.serve()
	}
	return w
}

// count is how many threads take part in a run.
func (w *workers) count() int {
	if w == nil { // a Device that New did not make has no workers
		return 1
	}
	return w.threads
}

func (w *workers) stop() { w.once.Do(func() { close(w.quit) }) }

func (w *workers) serve() {
	for {
		select {
		case j := <-w.jobs:
			j.work()
			j.wg.Done()
		case <-w.quit:
			return
		}
	}
}

// work takes chunks until none is left or the context is cancelled.
func (j *job) work() {
	for {
		select {
		case <-j.done:
			return
		default:
		}
		c := j.next.Add(1) - 1
		if c >= j.chunks {
			return
		}
		j.do(int(c))
	}
}

// run calls do for every chunk 0..chunks-1, on several threads and in any
// order, and returns when all calls have ended. If ctx is cancelled it starts
// no further chunk and returns ctx's error. A nil ctx is never cancelled.
func (w *workers) run(ctx context.Context, chunks int, do func(chunk int)) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil || chunks <= 0 {
		return err
	}
	if chunks == 1 {
		do(0)
		return ctx.Err()
	}
	j := &job{ctx: ctx, done: ctx.Done(), chunks: int64(chunks), do: do}
	for range min(w.count(), chunks) - 1 {
		j.wg.Add(1)
		select {
		case w.jobs <- j:
			continue
		default: // every worker is busy with other callers' jobs
		}
		j.wg.Done()
		break
	}
	j.work()
	j.wg.Wait()
	return ctx.Err()
}
