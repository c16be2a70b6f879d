package tensor

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/lamina-go/lamina/internal/memory"
)

// Device names a place where memory lies and kernels run: "cpu" or "ascend:0".
// It is a small comparable value; the zero value is no device.
type Device struct {
	kind  string
	index int
}

// CPU is the host.
var CPU = Device{kind: "cpu"}

// NewDevice names the index-th device of a kind.
func NewDevice(kind string, index int) Device { return Device{kind: kind, index: index} }

// ParseDevice reads "cpu", "ascend" or "ascend:1". A bad name is an error that wraps [ErrDevice].
func ParseDevice(name string) (Device, error) {
	kind, num, numbered := strings.Cut(name, ":")
	index := 0
	if numbered {
		n, err := strconv.Atoi(num)
		if err != nil || n < 0 || num != strconv.Itoa(n) { // one spelling only: no "+1", "-0" or "01"
			kind = ""
		}
		index = n
	}
	ok := kind != "" && !(kind == "cpu" && numbered)
	for _, c := range kind {
		ok = ok && c >= 'a' && c <= 'z'
	}
	if !ok {
		return Device{}, &ArgError{Op: "tensor.ParseDevice", Arg: "name", Got: fmt.Sprintf("%q", name),
			Want: "a device such as cpu or ascend:0", Kind: ErrDevice}
	}
	return Device{kind: kind, index: index}, nil
}

// Kind is the device's kind, such as "cpu".
func (d Device) Kind() string { return d.kind }

// Index tells devices of one kind apart.
func (d Device) Index() int { return d.index }

// String is the name that ParseDevice reads.
func (d Device) String() string {
	switch d {
	case Device{}:
		return "no device"
	case CPU:
		return "cpu"
	}
	return d.kind + ":" + strconv.Itoa(d.index)
}

// Memory is a block of bytes somewhere. All tensors over it share its version,
// a counter that whoever writes to the memory moves on. An implementation
// embeds [WriteCounter].
type Memory interface {
	Device() Device
	Size() int       // bytes
	Version() uint64 // how often it was written
	Written()        // counts one more write
}

// WriteCounter counts writes, for implementations of [Memory] to embed.
type WriteCounter struct{ n atomic.Uint64 }

// Version is the number of writes so far.
func (v *WriteCounter) Version() uint64 { return v.n.Load() }

// Written counts one more write.
func (v *WriteCounter) Written() { v.n.Add(1) }

// Host is memory of the host, aligned to 64 bytes. The Go garbage collector
// keeps it while a tensor refers to it.
type Host struct {
	WriteCounter
	first     atomic.Pointer[byte] // nil once it was discarded
	size      int
	discarded atomic.Bool
	lender    any
}

// NewHost makes n zeroed bytes. An n that is negative or beyond the machine's
// memory is taken as 0; a tensor will then not fit.
func NewHost(n int) *Host {
	h := &Host{}
	if n <= 0 || !memory.Fits(n) {
		return h
	}
	const align = 64
	words := make([]uint64, (n+align-1)/8+1)
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)
	skip := int(-uintptr(unsafe.Pointer(&raw[0])) & (align - 1))
	h.set(raw[skip:][:n])
	return h
}

func (h *Host) set(b []byte) {
	h.size = len(b)
	if len(b) > 0 {
		h.first.Store(&b[0])
	}
}

func aligned(b []byte) bool { return len(b) == 0 || uintptr(unsafe.Pointer(&b[0]))%8 == 0 }

// WrapHost is memory over existing bytes. The first byte must be aligned to 8
// bytes, else WrapHost copies.
func WrapHost(b []byte) *Host {
	if !aligned(b) {
		h := NewHost(len(b))
		copy(h.Bytes(), b)
		return h
	}
	h := &Host{}
	h.set(b)
	return h
}

// Lend makes h memory over existing bytes, for a device that makes many a Host
// at once and reuses its buffers; Lender gives back what it notes about it. It
// reports false, and changes nothing, where h has memory already or the first
// byte is not aligned to 8 bytes.
func (h *Host) Lend(b []byte, by any) bool {
	if h == nil || h.size > 0 || h.lender != nil || h.Discarded() || !aligned(b) {
		return false
	}
	h.lender = by
	h.set(b)
	return true
}

// Lender is what Lend was given; nil for other memory.
func (h *Host) Lender() any {
	if h == nil {
		return nil
	}
	return h.lender
}

// Device is CPU.
func (h *Host) Device() Device { return CPU }

// Size is the number of bytes.
func (h *Host) Size() int {
	if h == nil {
		return 0
	}
	return h.size
}

// Bytes is the memory itself, for devices; nil once it was discarded. Whoever
// writes to it calls Written.
func (h *Host) Bytes() []byte {
	if h == nil {
		return nil
	}
	first := h.first.Load()
	if first == nil {
		return nil
	}
	return unsafe.Slice(first, h.size)
}

// Discard marks memory that a device has taken back: its bytes may be another's
// by now, and whoever reads a tensor over it gets [ErrFreed].
func (h *Host) Discard() {
	if h != nil {
		h.Written()
		h.discarded.Store(true)
		h.first.Store(nil)
	}
}

// Discarded reports whether Discard was called.
func (h *Host) Discarded() bool { return h != nil && h.discarded.Load() }
