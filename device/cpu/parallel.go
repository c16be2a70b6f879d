package cpu

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// workers is a set of goroutines that live as long as their device. The caller
// of run always works too, so that a job is done even if no worker is free,
// and GOMAXPROCS=1 cannot hang.
//
// Waking a goroutine costs more than many a kernel. So a worker that has done a
// job watches its box for a while before it sleeps, and so does a caller who has
// to wait for the others.
type workers struct {
	threads int
	jobs    chan *job // to workers that sleep
	boxes   []box     // to those that watch
	quit    chan struct{}
	once    sync.Once
}

// box holds nil, or watched while a worker looks at it, or a job for that worker.
type box struct {
	atomic.Pointer[job]
	_ [56]byte // on a cache line of its own
}

var watched = new(job)

// watchFor is how long a worker without a job keeps its processor.
const watchFor = 200 * time.Microsecond

// task is work in chunks. What many a step calls is an object that is used again
// rather than a function, which would be made anew each time.
type task interface{ chunk(i int) }

// each is a function as a task.
type each func(i int)

func (f each) chunk(i int) { f(i) }

// job is a number of chunks to be done by whoever comes.
type job struct {
	done   <-chan struct{} // of the context
	chunks int64
	next   atomic.Int64
	task   task
	helped atomic.Int64 // workers that are not done
	wg     sync.WaitGroup
}

func startWorkers(threads int) *workers {
	w := &workers{threads: threads, jobs: make(chan *job), boxes: make([]box, threads-1), quit: make(chan struct{})}
	for i := range w.boxes {
		go w.serve(&w.boxes[i])
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

func (w *workers) serve(b *box) {
	for {
		select {
		case j := <-w.jobs:
			for j != nil {
				j.work()
				j.helped.Add(-1)
				j.wg.Done()
				j = w.watch(b)
			}
		case <-w.quit:
			return
		}
	}
}

// watch waits for a job in the box, and gives nil if none comes in time.
func (w *workers) watch(b *box) *job {
	b.Store(watched)
	w.spin(func() bool { return b.Load() != watched })
	if b.CompareAndSwap(watched, nil) {
		return nil
	}
	return b.Swap(nil)
}

// spin waits until done, though no longer than watchFor. Where there are not
// processors enough for all threads it does not wait at all.
func (w *workers) spin(done func() bool) {
	if w.count() > runtime.GOMAXPROCS(0) {
		return
	}
	for start := time.Now(); time.Since(start) < watchFor; {
		for range 16 {
			if done() {
				return
			}
			pause()
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
		j.task.chunk(int(c))
	}
}

// jobs are those that ended.
var jobs = sync.Pool{New: func() any { return new(job) }}

// run does chunks 0..chunks-1 of t, on several threads and in any order, and
// returns when all have ended. If ctx is cancelled it starts
// no further chunk and returns ctx's error. A nil ctx is never cancelled.
func (w *workers) run(ctx context.Context, chunks int, t task) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil || chunks <= 0 {
		return err
	}
	if chunks == 1 {
		t.chunk(0)
		return ctx.Err()
	}
	j := jobs.Get().(*job)
	j.done, j.chunks, j.task = ctx.Done(), int64(chunks), t
	j.next.Store(0)
	w.offer(j, min(w.count(), chunks)-1)
	j.work()
	w.spin(func() bool { return j.helped.Load() == 0 })
	j.wg.Wait() // now no worker has it any more
	j.done, j.task = nil, nil
	jobs.Put(j)
	return ctx.Err()
}

// offer gives the job to so many workers, or as many as are free.
func (w *workers) offer(j *job, helpers int) {
	if helpers == 0 {
		return
	}
	j.wg.Add(helpers)
	j.helped.Add(int64(helpers))
	for i := range w.boxes {
		if b := &w.boxes[i]; helpers > 0 && b.Load() == watched && b.CompareAndSwap(watched, j) {
			helpers--
		}
	}
	for ; helpers > 0; helpers-- {
		select {
		case w.jobs <- j:
			continue
		default: // every worker is busy with other callers' jobs
		}
		break
	}
	j.wg.Add(-helpers)
	j.helped.Add(int64(-helpers))
}
