package cpu

import (
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

func TestAlloc(t *testing.T) {
	d := newDevice(t, 1)
	for n := range 5000 {
		m := must[tensor.Memory](t)(d.Alloc(n))
		if m.Size() != n || m.Device() != tensor.CPU {
			t.Fatalf("%d bytes on %v, want %d on the host", m.Size(), m.Device(), n)
		}
		if b := m.(*tensor.Host).Bytes(); n > 0 && uintptr(unsafe.Pointer(&b[0]))%64 != 0 {
			t.Fatalf("%d bytes are not aligned", n)
		}
		if class := sizeClass(n); class < n || class > n+n/4+64 {
			t.Fatalf("%d bytes are given %d", n, class)
		}
		if n%2 == 0 {
			d.Free(m)
		}
	}
	for _, n := range []int{-1, math.MinInt, math.MaxInt, math.MaxInt - 100, math.MaxInt/2 + 1} {
		if _, err := d.Alloc(n); !errors.Is(err, tensor.ErrSize) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestFreeReuses(t *testing.T) {
	d := newDevice(t, 1)
	m := must[tensor.Memory](t)(d.Alloc(1000))
	first := &m.(*tensor.Host).Bytes()[0]
	version := m.Version()
	d.Free(m)
	if m.Version() == version {
		t.Error("the version did not move on")
	}
	again := must[tensor.Memory](t)(d.Alloc(1010)) // of the same class
	if &again.(*tensor.Host).Bytes()[0] != first {
		t.Error("freed memory was not used again")
	}
	d.Free(m) // a second time: it is another's by now
	other := must[tensor.Memory](t)(d.Alloc(1000))
	if &other.(*tensor.Host).Bytes()[0] == first {
		t.Error("the same memory was given to two")
	}
	inUse, _, cached := d.Memory()
	d.Free(nil)
	d.Free((*tensor.Host)(nil))
	d.Free(tensor.NewHost(64)) // as large as a class, but not from Alloc
	stranger := newDevice(t, 1)
	theirs := must[tensor.Memory](t)(stranger.Alloc(1000))
	d.Free(theirs)
	stranger.Free(again)
	if i, _, _ := stranger.Memory(); i == 0 || theirs.(*tensor.Host).Discarded() || again.(*tensor.Host).Discarded() {
		t.Error("another device's memory was freed")
	}
	d.Free(hollow2{})
	if i, _, c := d.Memory(); i != inUse || c != cached {
		t.Errorf("%d bytes in use and %d kept, want %d and %d", i, c, inUse, cached)
	}
	d.Free(again)
	d.Free(other)
	if i, _, _ := d.Memory(); i != 0 {
		t.Errorf("%d bytes in use at the end", i)
	}
	d.Trim()
	if _, peak, c := d.Memory(); c != 0 || peak != 0 {
		t.Errorf("after Trim %d bytes are kept, peak %d", c, peak)
	}
}

type hollow2 struct{ strange }

// However sizes follow each other, no more than a quarter is kept beside what was
// once in use, and the heap does not grow.
func TestBuffersAreBounded(t *testing.T) {
	d := newDevice(t, 1)
	r := rand.New(rand.NewPCG(5, 1))
	var held []tensor.Memory
	var heap runtime.MemStats
	for i := range 20000 {
		if len(held) == 8 {
			k := r.IntN(8)
			d.Free(held[k])
			held[k] = held[7]
			held = held[:7]
		}
		held = append(held, must[tensor.Memory](t)(d.Alloc(1+r.IntN(1<<(4+r.IntN(14))))))
		inUse, peak, cached := d.Memory()
		if inUse+cached > peak+peak/4 || inUse <= 0 {
			t.Fatalf("step %d: %d in use and %d kept are more than 5/4 of the peak %d", i, inUse, cached, peak)
		}
	}
	for _, m := range held {
		d.Free(m)
	}
	runtime.GC()
	runtime.ReadMemStats(&heap)
	before := heap.HeapAlloc
	for range 20000 {
		m := must[tensor.Memory](t)(d.Alloc(100000))
		d.Free(m)
	}
	runtime.GC()
	runtime.ReadMemStats(&heap)
	if heap.HeapAlloc > before+1<<20 {
		t.Errorf("the heap grew from %d to %d", before, heap.HeapAlloc)
	}
	if n := len(d.buffers.begun); n > 1 { // that of which the next Host will be taken
		t.Errorf("%d are still noted as lent", n)
	}
}

// What becomes garbage without a Free is garbage for the device too, and what is
// still held, or was freed, is not counted twice.
func TestBuffersForget(t *testing.T) {
	d := newDevice(t, 1)
	var held, freed []tensor.Memory
	const together = len(batch{}.hosts)
	for i := range 6*together + 10 {
		m := must[tensor.Memory](t)(d.Alloc(1000 + i%5))
		switch {
		case i < together+8:
			held = append(held, m)
		case i < 2*together && i%7 == 0: // in the batches of those
			freed = append(freed, m)
			d.Free(m)
		}
	}
	class := sizeClass(1000)
	d.buffers.forget()
	inUse, _, _ := d.Memory()
	if least, most := (together+8)*class, 2*together*class; inUse < least || inUse > most { // those beside the held ones in their batches may count
		t.Errorf("%d bytes in use, want %d to %d", inUse, least, most)
	}
	if n := len(d.buffers.begun); n != 2 {
		t.Errorf("%d accounts, want those of two batches", n)
	}
	d.Free(freed[0]) // once more
	if n := d.buffers.begun[0].lent + d.buffers.begun[1].lent; n != 2*together-len(freed) {
		t.Errorf("%d are lent of %d, of which %d were freed", n, 2*together, len(freed))
	}
	for i, m := range held {
		if len(m.(*tensor.Host).Bytes()) != 1000+i%5 {
			t.Fatal("what is held was lost")
		}
		d.Free(m)
		d.Free(m)
	}
	for _, m := range freed {
		d.Free(m)
	}
	d.buffers.forget()
	if inUse, _, _ := d.Memory(); inUse != 0 || len(d.buffers.begun) != 0 {
		t.Errorf("%d bytes in use and %d accounts at the end", inUse, len(d.buffers.begun))
	}
}

// What is lent is one's own, with many goroutines.
func TestBuffersConcurrently(t *testing.T) {
	d := newDevice(t, 1)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				m, err := d.Alloc(64 + i%300)
				if err != nil {
					t.Error(err)
					return
				}
				b := m.(*tensor.Host).Bytes()
				for j := range b {
					b[j] = byte(g)
				}
				runtime.Gosched()
				for j := range b {
					if b[j] != byte(g) {
						t.Error("memory was given to two")
						return
					}
				}
				d.Free(m)
			}
		})
	}
	wg.Wait()
}
