package cpu

import (
	"math"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/tensor"
)

// real is the type arithmetic is done in.
type real interface{ float32 | float64 }

// tile is how many elements a kernel widens at a time: small enough for the
// first cache, large enough to hide the switch over the dtype.
const tile = 512

// elems is a byte buffer as elements of type T.
func elems[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(z)))
}

// load widens len(dst) elements of dtype d that lie at index at, at+stride, ... of b.
func load[F real](dst []F, b []byte, d tensor.DType, at, stride int) {
	switch d {
	case tensor.Float32:
		loadAs(dst, elems[float32](b), at, stride)
	case tensor.Float64:
		loadAs(dst, elems[float64](b), at, stride)
	case tensor.Int32:
		loadAs(dst, elems[int32](b), at, stride)
	case tensor.Int64:
		loadAs(dst, elems[int64](b), at, stride)
	case tensor.BFloat16:
		src := elems[uint16](b)
		if stride == 1 {
			done := loadHalves(dst, src, d, at)
			for i, h := range src[at+done : at+len(dst)] {
				dst[done+i] = F(tensor.BFloat16ToFloat32(h))
			}
			return
		}
		for i := range dst {
			dst[i] = F(tensor.BFloat16ToFloat32(src[at+i*stride]))
		}
	case tensor.Float16:
		src := elems[uint16](b)
		if stride == 1 {
			done := loadHalves(dst, src, d, at)
			for i, h := range src[at+done : at+len(dst)] {
				dst[done+i] = F(float16Table[h])
			}
			return
		}
		for i := range dst {
			dst[i] = F(float16Table[src[at+i*stride]])
		}
	}
}

// halfKernels convert 16-bit rows that lie one behind another, in assembly; in
// the portable tier the loops of load and store do.
type halfKernels struct {
	widen  func(to *float32, from unsafe.Pointer, n int)         // n is a multiple of 16
	narrow func(to unsafe.Pointer, x *float32, c float32, n int) // to = c x, rounded; n is a multiple of 32
	// a op b, rounded; n is a multiple of 32. Nil in the portable tier.
	add, sub, mul, div func(to, a, b unsafe.Pointer, n int)
}

// op is the kernel of an arithmetic operation, nil if there is none.
func (k *halfKernels) op(f device.Binary) func(to, a, b unsafe.Pointer, n int) {
	switch f {
	case device.Add:
		return k.add
	case device.Sub:
		return k.sub
	case device.Mul:
		return k.mul
	case device.Div:
		return k.div
	}
	return nil
}

// loadHalves widens what the vectors can take of 16-bit numbers, and gives how many.
func loadHalves[F real](dst []F, src []uint16, d tensor.DType, at int) int {
	x, ok := any(dst).([]float32)
	n := len(dst) &^ 15
	if !ok || n == 0 || vectorKernelsOf(active) == nil {
		return 0
	}
	quickKernelsOf(active, d).widen(&x[0], unsafe.Pointer(&src[at]), n)
	return n
}

// storeHalves rounds what the vectors can take of float32 numbers, and gives how many.
func storeHalves(dst []uint16, d tensor.DType, at int, src []float32) int {
	n := len(src) &^ 31
	if n == 0 || vectorKernelsOf(active) == nil {
		return 0
	}
	quickKernelsOf(active, d).narrow(unsafe.Pointer(&dst[at]), &src[0], 1, n)
	return n
}

// storeWide rounds what the vectors can take of float64 numbers to a row of a
// narrower type, and gives how many.
func storeWide(b []byte, d tensor.DType, at int, src []float64) int {
	k := attnKernelsOf(active, d)
	if k == nil {
		return 0
	}
	done := 0
	for n := 0; done < len(src)&^15; done += n {
		n = min(rowAtOnce, len(src)&^15-done)
		k.narrow(unsafe.Pointer(&b[(at+done)*d.Size()]), &src[done], n)
	}
	return done
}

func loadAs[F real, T float32 | float64 | int32 | int64](dst []F, src []T, at, stride int) {
	if stride == 1 {
		src = src[at : at+len(dst)]
		if same, ok := any(src).([]F); ok {
			copy(dst, same)
			return
		}
		for i := range dst {
			dst[i] = F(src[i])
		}
		return
	}
	for i := range dst {
		dst[i] = F(src[at+i*stride])
	}
}

// store rounds src once to dtype d, a floating-point type, at index at, at+stride, ... of b.
func store[F real](b []byte, d tensor.DType, at, stride int, src []F) {
	if wide, ok := any(src).([]float64); ok && stride == 1 && d != tensor.Float64 {
		done := storeWide(b, d, at, wide)
		at, src = at+done, src[done:]
	}
	switch d {
	case tensor.Float32:
		storeAs(elems[float32](b), at, stride, src)
	case tensor.Float64:
		storeAs(elems[float64](b), at, stride, src)
	case tensor.BFloat16:
		storeBFloat16(elems[uint16](b), at, stride, src)
	case tensor.Float16:
		storeFloat16(elems[uint16](b), at, stride, src)
	}
}

func storeAs[F real, T float32 | float64](dst []T, at, stride int, src []F) {
	if stride == 1 {
		dst = dst[at : at+len(src)]
		if same, ok := any(dst).([]F); ok {
			copy(same, src)
			return
		}
		for i, x := range src {
			dst[i] = T(x)
		}
		return
	}
	for i, x := range src {
		dst[at+i*stride] = T(x)
	}
}

func storeBFloat16[F real](dst []uint16, at, stride int, src []F) {
	switch src := any(src).(type) {
	case []float32:
		if stride == 1 {
			done := storeHalves(dst, tensor.BFloat16, at, src)
			dst = dst[at : at+len(src)]
			for i, x := range src[done:] {
				dst[done+i] = tensor.BFloat16FromFloat32(x)
			}
			return
		}
		for i, x := range src {
			dst[at+i*stride] = tensor.BFloat16FromFloat32(x)
		}
	case []float64:
		if stride == 1 {
			storeBFloat16Row(dst[at:], src)
			return
		}
		for i, x := range src {
			dst[at+i*stride] = tensor.BFloat16FromFloat64(x)
		}
	}
}

// storeBFloat16Row is the rounding of tensor.BFloat16FromFloat64 without a call
// for each element.
func storeBFloat16Row(dst []uint16, src []float64) {
	dst = dst[:len(src)]
	for i, x := range src {
		b := math.Float64bits(x)
		m := b &^ (1 << 63)
		if m-(1023-126)<<52 < (126+128)<<52 { // a normal bfloat16
			dst[i] = uint16(b>>48)&0x8000 | uint16((m+(1<<44-1)+m>>45&1)>>45-(1023-127)<<7)
			continue
		}
		dst[i] = tensor.BFloat16FromFloat64(x)
	}
}

func storeFloat16[F real](dst []uint16, at, stride int, src []F) {
	switch src := any(src).(type) {
	case []float32:
		done := 0
		if stride == 1 {
			done = storeHalves(dst, tensor.Float16, at, src)
		}
		for i, x := range src[done:] {
			dst[at+(done+i)*stride] = tensor.Float16FromFloat32(x)
		}
	case []float64:
		for i, x := range src {
			dst[at+i*stride] = tensor.Float16FromFloat64(x)
		}
	}
}

// float16Table widens a binary16 by one look-up: 256 KiB, made once.
var float16Table = func() (t [1 << 16]float32) {
	for i := range t {
		t[i] = tensor.Float16ToFloat32(uint16(i))
	}
	return t
}()

// at is the n elements from p on.
func at[F real](p *F, n int) []F { return unsafe.Slice(p, n) }
