package cpu

import (
	"math/bits"
	"sync"

	"github.com/lamina-go/lamina/tensor"
)

// buffers keeps freed memory for the next allocation of the same size class,
// because fresh memory costs a page fault for every 4 KiB. It never keeps more
// than was once in use at the same time.
type buffers struct {
	mu     sync.Mutex
	free   map[int][][]byte // by size class
	inUse  int              // bytes handed out and not yet freed
	peak   int              // largest inUse
	cached int              // bytes in free
}

// sizeClass rounds up to one of four steps between powers of two, at least 64 bytes.
func sizeClass(n int) int {
	if n <= 64 {
		return 64
	}
	step := 1 << max(bits.Len(uint(n-1))-3, 6)
	return (n + step - 1) / step * step
}

// Alloc gives n bytes of undefined content, aligned to 64 bytes. A negative n
// is an error.
func (d *Device) Alloc(n int) (tensor.Memory, error) {
	if n < 0 {
		return nil, &tensor.ArgError{Op: "cpu.Alloc", Arg: "n", Got: tensor.Shape{n}.String(), Want: "a number of bytes", Kind: tensor.ErrSize}
	}
	if n == 0 {
		return tensor.NewHost(0), nil
	}
	class := sizeClass(n)
	b := &d.buffers
	b.mu.Lock()
	b.inUse += class
	b.peak = max(b.peak, b.inUse)
	if list := b.free[class]; len(list) > 0 {
		raw := list[len(list)-1]
		list[len(list)-1] = nil
		b.free[class] = list[:len(list)-1]
		b.cached -= class
		b.mu.Unlock()
		return tensor.WrapHost(raw[:n]), nil
	}
	// Make room for the new memory under the peak: drop what lies about in other sizes.
	for c := range b.free {
		for len(b.free[c]) > 0 && b.inUse+b.cached > b.peak {
			b.free[c] = b.free[c][:len(b.free[c])-1]
			b.cached -= c
		}
		if len(b.free[c]) == 0 {
			delete(b.free, c)
		}
	}
	b.mu.Unlock()
	return tensor.WrapHost(tensor.NewHost(class).Bytes()[:n]), nil
}

// Free takes memory of Alloc back for reuse. Nothing may use it afterwards.
func (d *Device) Free(m tensor.Memory) {
	h, ok := m.(*tensor.Host)
	if !ok || h == nil || h.Size() == 0 {
		return
	}
	raw := h.Bytes()
	class := sizeClass(len(raw))
	if cap(raw) != class { // not from Alloc
		return
	}
	h.Written() // whoever saved it will notice
	b := &d.buffers
	b.mu.Lock()
	defer b.mu.Unlock()
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
	d.buffers.mu.Lock()
	defer d.buffers.mu.Unlock()
	return d.buffers.inUse, d.buffers.peak, d.buffers.cached
}

// Trim gives the memory kept for reuse back to the garbage collector.
func (d *Device) Trim() {
	d.buffers.mu.Lock()
	defer d.buffers.mu.Unlock()
	d.buffers.free, d.buffers.cached, d.buffers.peak = nil, 0, d.buffers.inUse
}
