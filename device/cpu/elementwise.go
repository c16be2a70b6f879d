package cpu

import (
	"context"
	"math"
	"sync"
	"unsafe"

	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/tensor"
)

// kernel computes one tile of out from the same tile of the inputs.
type kernel[F real] func(c *constants, out []F, in *[maxOperands - 1][]F)

// constants is what a kernel is told beside the numbers.
type constants struct {
	a, b float64 // the parameters of a function
	near *nearMap
	// What computes multiples of 16 elements, or nil, and the rest.
	map1 func(out, x *float32, n int)
	map2 func(out, a, b *float32, n int)
	rest kernel[float32]
	// What computes multiples of 32 elements of three rows of one 16-bit format, or nil.
	halves func(out, a, b unsafe.Pointer, n int)
}

// elementwiseCall is a kernel over tensors of equal shapes, the output first.
type elementwiseCall[F real] struct {
	loop
	kernel    kernel[F]
	constants constants
}

// inputs is room for one tile of each operand, and where the tiles are.
type inputs[F real] struct {
	scratch
	in [maxOperands - 1][]F
}

var (
	inputs32           = sync.Pool{New: func() any { return new(inputs[float32]) }}
	inputs64           = sync.Pool{New: func() any { return new(inputs[float64]) }}
	elementwiseCalls32 = sync.Pool{New: func() any { return new(elementwiseCall[float32]) }}
	elementwiseCalls64 = sync.Pool{New: func() any { return new(elementwiseCall[float64]) }}
)

// elementwise runs a kernel over tensors of equal shapes, the output first.
func elementwise[F real](ctx context.Context, d *Device, k kernel[F], c constants, ts ...*tensor.Tensor) error {
	pool := &elementwiseCalls32
	if dtypeOf[F]() == tensor.Float64 {
		pool = &elementwiseCalls64
	}
	call := pool.Get().(*elementwiseCall[F])
	defer pool.Put(call)
	if err := call.over(ts...); err != nil {
		return err
	}
	call.kernel, call.constants = k, c
	err := d.run(ctx, call.chunks(), call)
	*call = elementwiseCall[F]{}
	ts[0].Memory().Written()
	return err
}

func (e *elementwiseCall[F]) chunk(i int) {
	pool := &inputs32
	if dtypeOf[F]() == tensor.Float64 {
		pool = &inputs64
	}
	room := pool.Get().(*inputs[F])
	defer pool.Put(room)
	s, in, l := &room.scratch, &room.in, &e.loop
	var repeated [maxOperands]struct{ at, n int } // a value that fills a tile already
	out := &l.operand[0]
	direct := out.dtype == dtypeOf[F]() && l.inner(0) == 1
	c := l.chunkAt(i)
	longest := tile
	if e.constants.halves != nil && l.inner(0) == 1 && l.inner(1) == 1 && l.inner(2) == 1 {
		longest = grain
	}
	for n, at := c.next(longest); n > 0; n, at = c.next(longest) {
		if longest > tile {
			done := n &^ 31
			if done > 0 {
				e.constants.halves(l.pointer(0, at[0]), l.pointer(1, at[1]), l.pointer(2, at[2]), done)
			}
			if n -= done; n == 0 {
				continue
			}
			for k := range l.n {
				at[k] += done
			}
		}
		for k := 1; k < l.n; k++ {
			r := &repeated[k]
			if l.inner(k) == 0 && r.at == at[k] && r.n >= n {
				in[k-1] = tileOf[F](s, k)[:n]
				continue
			}
			in[k-1] = widened(&l.operand[k], tileOf[F](s, k), n, at[k], l.inner(k))
			if l.inner(k) == 0 && n > 1 {
				r.at, r.n = at[k], n
			} else {
				r.n = 0
			}
		}
		if direct {
			e.kernel(&e.constants, elems[F](out.bytes)[at[0]:at[0]+n], in)
			continue
		}
		to := tileOf[F](s, 0)[:n]
		e.kernel(&e.constants, to, in)
		store(out.bytes, out.dtype, at[0], l.inner(0), to)
	}
}

// The kernels, made once.
var (
	binaries32   = kernelsOf(binary[float32])
	binaries64   = kernelsOf(binary[float64])
	unaries32    = kernelsOf(unary[float32])
	unaries64    = kernelsOf(unary[float64])
	unaryGrads32 = kernelsOf(unaryGrad[float32])
	unaryGrads64 = kernelsOf(unaryGrad[float64])
)

// kernelsOf is the kernels of all functions; those that there are not are made too.
func kernelsOf[F real, Of ~uint8](kernel func(f Of) kernel[F]) (all [32]kernel[F]) {
	for f := range all {
		all[f] = kernel(Of(f))
	}
	return all
}

// unary32, unaryGrad32 and binary32 are the kernels of a function in float32, on
// vectors where the tier has them.
func unary32(f device.Unary) (kernel[float32], constants) {
	if m := nearMaps[f.Func]; m != nil {
		values, _ := mapVectors(active, f.Func)
		return nearKernel, constants{near: m, map1: values}
	}
	return unaries32[f.Func], constants{a: f.A, b: f.B}
}

func unaryGrad32(f device.Unary) (kernel[float32], constants) {
	if m := nearMaps[f.Func]; m != nil {
		_, slopes := mapVectors(active, f.Func)
		return nearSlope, constants{near: m, map2: slopes}
	}
	return unaryGrads32[f.Func], constants{a: f.A, b: f.B}
}

func binary32(f device.Binary) (kernel[float32], constants) {
	if rows := vectorKernelsOf(active).rowOp(f); rows != nil {
		return binaryRows, constants{map2: rows, rest: binaries32[f]}
	}
	return binaries32[f], constants{}
}

// Unary: out = f(x). f is evaluated in float64 and rounded once to the type of the arithmetic.
func (d *Device) Unary(ctx context.Context, f device.Unary, out, x *tensor.Tensor) error {
	if err := device.CheckUnary(d.Name(), f, out, x); err != nil {
		return err
	}
	if isWide64(out, x) {
		return elementwise(ctx, d, unaries64[f.Func], constants{a: f.A, b: f.B}, out, x)
	}
	k, c := unary32(f)
	return elementwise(ctx, d, k, c, out, x)
}

// UnaryGrad: out = g f'(x), evaluated like Unary. Where x is NaN so is the result.
func (d *Device) UnaryGrad(ctx context.Context, f device.Unary, out, g, x *tensor.Tensor) error {
	if err := device.CheckUnaryGrad(d.Name(), f, out, g, x); err != nil {
		return err
	}
	if isWide64(out, g, x) {
		return elementwise(ctx, d, unaryGrads64[f.Func], constants{a: f.A, b: f.B}, out, g, x)
	}
	k, c := unaryGrad32(f)
	return elementwise(ctx, d, k, c, out, g, x)
}

// Binary: out = f(a, b).
func (d *Device) Binary(ctx context.Context, f device.Binary, out, a, b *tensor.Tensor) error {
	if err := device.CheckBinary(d.Name(), f, out, a, b); err != nil {
		return err
	}
	if isWide64(out, a, b) {
		return elementwise(ctx, d, binaries64[f], constants{}, out, a, b)
	}
	k, c := binary32(f)
	if t := out.DType(); t.IsHalf() && a.DType() == t && b.DType() == t && vectorKernelsOf(active) != nil {
		c.halves = quickKernelsOf(active, t).op(f)
	}
	return elementwise(ctx, d, k, c, out, a, b)
}

// Where: out = a where cond is not 0, else b.
func (d *Device) Where(ctx context.Context, out, cond, a, b *tensor.Tensor) error {
	if err := device.CheckWhere(d.Name(), out, cond, a, b); err != nil {
		return err
	}
	if isWide64(out, a, b) {
		return elementwise(ctx, d, where[float64], constants{}, out, cond, a, b)
	}
	return elementwise(ctx, d, where[float32], constants{}, out, cond, a, b)
}

// where sees cond widened to F; no integer but 0 becomes 0 by that.
func where[F real](_ *constants, out []F, in *[maxOperands - 1][]F) {
	cond, a, b := in[0][:len(out)], in[1][:len(out)], in[2][:len(out)]
	for i := range out {
		if cond[i] != 0 {
			out[i] = a[i]
		} else {
			out[i] = b[i]
		}
	}
}

func binary[F real](f device.Binary) kernel[F] {
	switch f {
	case device.Add:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			a, b := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				out[i] = a[i] + b[i]
			}
		}
	case device.Sub:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			a, b := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				out[i] = a[i] - b[i]
			}
		}
	case device.Mul:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			a, b := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				out[i] = a[i] * b[i]
			}
		}
	case device.Div:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			a, b := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				out[i] = a[i] / b[i]
			}
		}
	case device.Maximum:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			a, b := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				out[i] = max(a[i], b[i])
			}
		}
	case device.Minimum:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			a, b := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				out[i] = min(a[i], b[i])
			}
		}
	case device.Greater:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			a, b := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				switch {
				case a[i] > b[i]:
					out[i] = 1
				case a[i] == b[i]:
					out[i] = 0.5
				default:
					out[i] = 0
				}
			}
		}
	}
	return func(_ *constants, out []F, in *[maxOperands - 1][]F) { // device.Equal
		a, b := in[0][:len(out)], in[1][:len(out)]
		for i := range out {
			if a[i] == b[i] {
				out[i] = 1
			} else {
				out[i] = 0
			}
		}
	}
}

// of makes a kernel of a function whose cost is larger than that of a call.
func of[F real](f func(x float64) float64) kernel[F] {
	return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
		x := in[0][:len(out)]
		var wx wide
		for len(out) > 0 {
			n := widen(&wx, x)
			for i, v := range wx[:n] {
				out[i] = F(f(v))
			}
			out, x = out[n:], x[n:]
		}
	}
}

// wide holds some numbers as float64. They are converted in a loop of their
// own: next to the call, the conversion of amd64 would wait for the result of
// the call before, because it keeps the upper half of its register.
type wide [64]float64

func widen[F real](w *wide, x []F) int {
	n := min(len(x), len(w))
	for i, v := range x[:n] {
		w[i] = float64(v)
	}
	return n
}

// unary is f. The functions that cost no more than a call have a loop of their own.
func unary[F real](f device.UnaryFunc) kernel[F] {
	switch f {
	case device.Neg:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			x := in[0][:len(out)]
			for i := range out {
				out[i] = -x[i]
			}
		}
	case device.Abs:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(math.Abs(float64(x[i])))
			}
		}
	case device.Sqrt:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(math.Sqrt(float64(x[i])))
			}
		}
	case device.Rsqrt:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(1 / math.Sqrt(float64(x[i])))
			}
		}
	case device.Reciprocal:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			x := in[0][:len(out)]
			for i := range out {
				out[i] = 1 / x[i]
			}
		}
	case device.Square:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			x := in[0][:len(out)]
			for i := range out {
				out[i] = x[i] * x[i]
			}
		}
	case device.ReLU:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			x := in[0][:len(out)]
			for i := range out {
				out[i] = max(x[i], 0)
			}
		}
	case device.Clamp:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			lo, hi := F(c.a), F(c.b)
			x := in[0][:len(out)]
			for i := range out {
				out[i] = min(max(x[i], lo), hi)
			}
		}
	case device.MaxScalar:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			bound := F(c.a)
			x := in[0][:len(out)]
			for i := range out {
				out[i] = max(x[i], bound)
			}
		}
	case device.MinScalar:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			bound := F(c.a)
			x := in[0][:len(out)]
			for i := range out {
				out[i] = min(x[i], bound)
			}
		}
	// The parameter is not rounded to F first: it need not be representable there.
	case device.AddScalar:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			a := c.a
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(float64(x[i]) + a)
			}
		}
	case device.SubFrom:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			a := c.a
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(a - float64(x[i]))
			}
		}
	case device.MulScalar:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			a := c.a
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(float64(x[i]) * a)
			}
		}
	case device.DivScalar:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			a := c.a
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(float64(x[i]) / a)
			}
		}
	case device.DivInto:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			a := c.a
			x := in[0][:len(out)]
			for i := range out {
				out[i] = F(a / float64(x[i]))
			}
		}
	case device.Exp:
		return of[F](elementary.Exp)
	case device.Log:
		return of[F](elementary.Log)
	case device.Sin:
		return of[F](elementary.Sin)
	case device.Cos:
		return of[F](elementary.Cos)
	case device.Tanh:
		return of[F](elementary.Tanh)
	case device.Erf:
		return of[F](elementary.Erf)
	case device.Sigmoid:
		return of[F](func(x float64) float64 { s, _ := sigmoids(x); return s })
	case device.GELU:
		return of[F](gelu)
	case device.GELUTanh:
		return of[F](geluTanh)
	case device.SiLU:
		return of[F](silu)
	}
	return with(func(a, _ float64) kernel[F] { // device.Pow
		return of[F](func(x float64) float64 { return elementary.Pow(x, a) })
	})
}

// with is a kernel whose function depends on the parameters; it is made for each tile.
func with[F real](k func(a, b float64) kernel[F]) kernel[F] {
	return func(c *constants, out []F, in *[maxOperands - 1][]F) { k(c.a, c.b)(c, out, in) }
}

// times makes a kernel of g f'(x).
func times[F real](f func(g, x float64) float64) kernel[F] {
	return func(c *constants, out []F, in *[maxOperands - 1][]F) {
		g, x := in[0][:len(out)], in[1][:len(out)]
		var wg, wx wide
		for len(out) > 0 {
			n := widen(&wg, g)
			widen(&wx, x)
			for i, v := range wx[:n] {
				out[i] = F(f(wg[i], v))
			}
			out, g, x = out[n:], g[n:], x[n:]
		}
	}
}

// unaryGrad is g f'(x). Each form is chosen to lose nothing where f' is small.
func unaryGrad[F real](f device.UnaryFunc) kernel[F] {
	switch f {
	// These cost no more than a call, and have a loop of their own.
	case device.Neg, device.SubFrom:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			g := in[0][:len(out)]
			for i := range out {
				out[i] = -g[i]
			}
		}
	case device.MulScalar:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			a := c.a
			g := in[0][:len(out)]
			for i := range out {
				out[i] = F(float64(g[i]) * a)
			}
		}
	case device.DivScalar:
		return func(c *constants, out []F, in *[maxOperands - 1][]F) {
			a := c.a
			g := in[0][:len(out)]
			for i := range out {
				out[i] = F(float64(g[i]) / a)
			}
		}
	case device.Square:
		return func(_ *constants, out []F, in *[maxOperands - 1][]F) {
			g, x := in[0][:len(out)], in[1][:len(out)]
			for i := range out {
				out[i] = F(2 * float64(x[i]) * float64(g[i]))
			}
		}
	case device.Abs:
		return times[F](func(g, x float64) float64 {
			switch {
			case x > 0:
				return g
			case x < 0:
				return -g
			}
			return g * x // 0 or NaN
		})
	case device.Exp:
		return times[F](func(g, x float64) float64 { return g * elementary.Exp(x) })
	case device.Log:
		return times[F](func(g, x float64) float64 { return g / x })
	case device.Sqrt:
		return times[F](func(g, x float64) float64 { return g / (2 * math.Sqrt(x)) })
	case device.Rsqrt:
		return times[F](func(g, x float64) float64 { return -0.5 * g / x / math.Sqrt(x) })
	case device.Reciprocal:
		return times[F](func(g, x float64) float64 { return -(g / x) / x })
	case device.Sin:
		return times[F](func(g, x float64) float64 { return g * elementary.Cos(x) })
	case device.Cos:
		return times[F](func(g, x float64) float64 { return -g * elementary.Sin(x) })
	case device.Tanh:
		return times[F](func(g, x float64) float64 {
			u := elementary.Exp(-math.Abs(x))
			sech := 2 * u / (1 + float64(u*u))
			return g * sech * sech
		})
	case device.Erf:
		return times[F](func(g, x float64) float64 { return g * (2 / math.SqrtPi * gauss(x, 1)) })
	case device.Sigmoid:
		return times[F](func(g, x float64) float64 { s, rest := sigmoids(x); return g * s * rest })
	case device.ReLU:
		return times[F](func(g, x float64) float64 { return g * step(x, 0, 0) })
	case device.GELU:
		return times[F](func(g, x float64) float64 { return g * geluSlope(x) })
	case device.GELUTanh:
		return times[F](func(g, x float64) float64 { return g * geluTanhSlope(x) })
	case device.SiLU:
		return times[F](func(g, x float64) float64 { return g * siluSlope(x) })
	case device.Clamp:
		return with(func(a, b float64) kernel[F] {
			lo, hi := float64(F(a)), float64(F(b))
			return times[F](func(g, x float64) float64 { return g * (step(x, lo, 1) * step(-x, -hi, 1)) })
		})
	case device.Pow:
		return with(func(a, _ float64) kernel[F] {
			if a == 0 {
				return times[F](func(g, x float64) float64 { return 0 * g })
			}
			return times[F](func(g, x float64) float64 { return g * (a * elementary.Pow(x, a-1)) })
		})
	case device.DivInto:
		return with(func(a, _ float64) kernel[F] {
			return times[F](func(g, x float64) float64 { return -(a / x) * (g / x) })
		})
	case device.MaxScalar:
		return with(func(a, _ float64) kernel[F] {
			lo := float64(F(a))
			return times[F](func(g, x float64) float64 { return g * step(x, lo, 0.5) })
		})
	case device.MinScalar:
		return with(func(a, _ float64) kernel[F] {
			lo := float64(F(a))
			return times[F](func(g, x float64) float64 { return g * step(-x, -lo, 0.5) })
		})
	}
	return func(_ *constants, out []F, in *[maxOperands - 1][]F) { copy(out, in[0]) } // device.AddScalar
}

// step is 1 where x is above a, tie where they are equal, else 0; a NaN stays one.
func step(x, a, tie float64) float64 {
	switch {
	case x > a:
		return 1
	case x == a:
		return tie
	case x < a:
		return 0
	}
	return math.NaN()
}

// gauss is exp(-c x^2) for c = 1 or 1/2. The rounding of the square is made
// good, for it would be as large as the exponent times that of the result.
func gauss(x, c float64) float64 {
	square := float64(x * x)
	e := elementary.Exp(-c * square)
	if e == 0 {
		return 0
	}
	return e - float64(e*float64(c*math.FMA(x, x, -square)))
}

// sigmoids is the sigmoid of x and that of -x, which is 1 less the first but
// accurate. It does not branch, for no processor foresees the sign of x.
func sigmoids(x float64) (s, rest float64) {
	e := elementary.Exp(-math.Abs(x))
	large, small := math.Float64bits(1/(1+e)), math.Float64bits(e/(1+e))
	swap := (large ^ small) & uint64(int64(math.Float64bits(x))>>63)
	return math.Float64frombits(large ^ swap), math.Float64frombits(small ^ swap)
}

func gelu(x float64) float64 {
	if x == math.Inf(-1) {
		return math.Copysign(0, -1)
	}
	return x * elementary.NormalCDF(x)
}

func geluSlope(x float64) float64 {
	cdf := elementary.NormalCDF(x)
	density := gauss(x, 0.5) * (1 / (math.Sqrt2 * math.SqrtPi))
	if density == 0 {
		return cdf
	}
	return cdf + float64(x*density)
}

// The tanh form of GELU is x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
const (
	geluRoot  = 2 * math.Sqrt2 / math.SqrtPi // of 2u
	geluCubic = 0.044715
	geluEnd   = 100 // beyond, the sigmoid is 0 or 1
)

func geluTanh(x float64) float64 {
	if math.Abs(x) > geluEnd {
		if x < 0 {
			return math.Copysign(0, -1)
		}
		return x
	}
	s, _ := sigmoids(geluRoot * x * (1 + float64(geluCubic*float64(x*x))))
	return x * s
}

func geluTanhSlope(x float64) float64 {
	if math.Abs(x) > geluEnd {
		return step(x, 0, 0)
	}
	square := float64(x * x)
	s, rest := sigmoids(geluRoot * x * (1 + float64(geluCubic*square)))
	slope := geluRoot * (1 + float64(3*geluCubic*square))
	return s + float64(x*s*rest*slope)
}

func silu(x float64) float64 {
	if x == math.Inf(-1) {
		return math.Copysign(0, -1)
	}
	s, _ := sigmoids(x)
	return x * s
}

func siluSlope(x float64) float64 {
	s, rest := sigmoids(x)
	if s == 0 || rest == 0 {
		return s
	}
	return s * (1 + float64(x*rest))
}
