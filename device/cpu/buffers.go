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
	free   map[int][][]byte                  // by size class
	lent   map[weak.Pointer[tensor.Host]]int // what Free may take back, and once only, with its size class
	inUse  int                               // bytes handed out and not yet freed
	peak   int                               // largest inUse
	cached int                               // bytes in free
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
		h := b.lend(raw[:n])
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
	return b.lend(raw[:n]), nil
}

func (b *buffers) lend(raw []byte) *tensor.Host {
	h := tensor.WrapHost(raw)
	if b.lent == nil {
		b.lent = map[weak.Pointer[tensor.Host]]int{}
	}
	b.lent[weak.Make(h)] = sizeClass(len(raw))
	return h
}

// forget no longer counts memory that became garbage without a Free.
func (b *buffers) forget() {
	runtime.GC()
	for h, class := range b.lent {
		if h.Value() == nil {
			delete(b.lent, h)
			b.inUse -= class
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
	b := &d.buffers
	b.mu.Lock()
	defer b.mu.Unlock()
	key := weak.Make(h)
	if _, ok := b.lent[key]; !ok {
		return
	}
	delete(b.lent, key)
	h.Discard() // whoever holds it will notice
	raw := h.Bytes()
	class := sizeClass(len(raw))
	if b.free == nil {
		b.free = map[int][][]byte{}
	}
	b.inUse -= class
	b.free[class] = append(b.free[class], raw[:class])
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
