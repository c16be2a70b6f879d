package cpu

import (
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"strconv"
	"sync"
	"weak"

	"github.com/lamina-go/lamina/internal/memory"
	"github.com/lamina-go/lamina/tensor"
)

// buffers keeps freed memory for the next allocation of the same size class,
// because fresh memory costs a page fault for every 4 KiB. What it keeps and
// what is in use are together never more than 5/4 of what was once in use at the
// same time: less, and a training step would never find all its sizes.
type buffers struct {
	mu     sync.Mutex
	mark   *int             // tells it from other devices' without keeping it in memory
	free   map[int][][]byte // by size class
	next   *batch           // of which the next Host is taken
	begun  []*account       // of all batches that have, or will have, something lent
	spare  []*account       // that ended
	inUse  int              // bytes handed out and not yet freed
	peak   int              // largest inUse
	cached int              // bytes in free
}

// batch is Hosts that are made together, since each alone would cost more than
// many a kernel, and the loan that each is. They are garbage together.
type batch struct {
	hosts [128]tensor.Host
	loans [128]loan
	*account
}

// loan is what Free takes back of a Host, which has it as its lender.
type loan struct {
	of  *account
	raw []byte // as long as its size class; nil once it was freed
}

// account is what is lent of a batch. It is still there when the batch is
// garbage, and keeps nothing of it.
type account struct {
	mark  *int // the buffers'
	of    weak.Pointer[batch]
	at    int // in begun
	taken int // Hosts
	lent  int // those that were not freed
	bytes int // of them
}

// sizeClass rounds up to one of four steps between powers of two, at least 64 bytes.
func sizeClass(n int) int {
	if n <= 64 {
		return 64
	}
	step := 1 << max(bits.Len(uint(n-1))-3, 6)
	return (n + step - 1) / step * step
}

// Alloc gives n bytes of undefined content, aligned to 64 bytes. An n that is
// negative, or more than the machine has beside what is in use, is an error.
func (d *Device) Alloc(n int) (tensor.Memory, error) {
	if n < 0 {
		return nil, &tensor.ArgError{Op: "cpu.Alloc", Arg: "n", Got: strconv.Itoa(n), Want: "a number of bytes", Kind: tensor.ErrSize}
	}
	if d == nil {
		return nil, errNil
	}
	if n == 0 {
		return tensor.NewHost(0), nil
	}
	class := math.MaxInt
	if memory.Fits(n) {
		class = sizeClass(n)
	}
	b := &d.buffers
	b.mu.Lock()
	if class > memory.Limit()-b.inUse {
		b.forget()
	}
	if room := memory.Limit() - b.inUse; class > room {
		b.mu.Unlock()
		return nil, &tensor.ArgError{Op: "cpu.Alloc", Arg: "n", Got: fmt.Sprintf("%d bytes", n), Want: fmt.Sprintf("at most %d, the machine's memory less what is in use", max(room, 0)), Kind: tensor.ErrSize}
	}
	b.inUse += class
	b.peak = max(b.peak, b.inUse)
	if list := b.free[class]; len(list) > 0 {
		raw := list[len(list)-1]
		list[len(list)-1] = nil
		b.free[class] = list[:len(list)-1]
		b.cached -= class
		h := b.lend(raw, n)
		b.mu.Unlock()
		return h, nil
	}
	// Make room for the new memory under the bound: drop what lies about in other sizes.
	for c := range b.free {
		for len(b.free[c]) > 0 && b.inUse+b.cached > b.peak+b.peak/4 {
			b.free[c] = b.free[c][:len(b.free[c])-1]
			b.cached -= c
		}
		if len(b.free[c]) == 0 {
			delete(b.free, c)
		}
	}
	b.mu.Unlock()
	raw := tensor.NewHost(class).Bytes() // outside the lock: it may take the time of clearing it
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lend(raw, n), nil
}

// lend makes n bytes of a buffer a Host.
func (b *buffers) lend(raw []byte, n int) *tensor.Host {
	if b.next == nil {
		if b.mark == nil {
			b.mark = new(int)
		}
		var a *account
		if n := len(b.spare); n > 0 {
			a, b.spare = b.spare[n-1], b.spare[:n-1]
		} else {
			a = new(account)
		}
		*a = account{mark: b.mark, at: len(b.begun)}
		b.next = &batch{account: a}
		b.next.of = weak.Make(b.next)
		b.begun = append(b.begun, b.next.account)
	}
	next := b.next
	h, l := &next.hosts[next.taken], &next.loans[next.taken]
	*l = loan{of: next.account, raw: raw}
	h.Lend(raw[:n], l)
	next.lent++
	next.bytes += len(raw)
	if next.taken++; next.taken == len(next.hosts) {
		b.next = nil
	}
	return h
}

// ended takes an account off the list.
func (b *buffers) ended(a *account) {
	last := b.begun[len(b.begun)-1]
	b.begun[a.at], last.at = last, a.at
	b.begun[len(b.begun)-1] = nil
	b.begun = b.begun[:len(b.begun)-1]
	b.spare = append(b.spare, a)
}

// forget no longer counts memory that became garbage without a Free.
func (b *buffers) forget() {
	b.next = nil
	runtime.GC()
	for i := len(b.begun) - 1; i >= 0; i-- { // the last takes the place of what is taken off
		if a := b.begun[i]; a.of.Value() == nil || a.lent == 0 {
			b.inUse -= a.bytes
			b.ended(a)
		}
	}
}

// Free takes memory of Alloc back for reuse. Nothing may use it afterwards.
// Memory that is not of this device's Alloc, or was freed before, is left alone.
func (d *Device) Free(m tensor.Memory) {
	h, ok := m.(*tensor.Host)
	if !ok || h == nil || d == nil {
		return
	}
	l, ok := h.Lender().(*loan)
	b := &d.buffers
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.of.mark != b.mark {
		return
	}
	raw, class := l.raw, len(l.raw)
	if raw == nil {
		return
	}
	l.raw = nil
	h.Discard() // whoever holds it will notice
	of := l.of
	of.lent--
	of.bytes -= class
	if of.lent == 0 && (b.next == nil || of != b.next.account) {
		b.ended(of)
	}
	if b.free == nil {
		b.free = map[int][][]byte{}
	}
	b.inUse -= class
	b.free[class] = append(b.free[class], raw)
	b.cached += class
}

// Memory reports, in bytes, what is handed out now, the most that ever was,
// and what is kept for reuse.
func (d *Device) Memory() (inUse, peak, cached int) {
	if d == nil {
		return 0, 0, 0
	}
	d.buffers.mu.Lock()
	defer d.buffers.mu.Unlock()
	return d.buffers.inUse, d.buffers.peak, d.buffers.cached
}

// Trim gives the memory kept for reuse back to the garbage collector.
func (d *Device) Trim() {
	if d == nil {
		return
	}
	d.buffers.mu.Lock()
	defer d.buffers.mu.Unlock()
	d.buffers.free, d.buffers.cached, d.buffers.peak = nil, 0, d.buffers.inUse
}
