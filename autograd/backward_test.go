package autograd_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

func TestBackwardNeedsARightSeed(t *testing.T) {
	x := host(t, tensor.Float64, []float64{1, 2}, 2)
	there, err := tensor.New(&elsewhere{}, tensor.Float64, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		seed *tensor.Tensor
		want error
		says string
	}{
		{"none", nil, autograd.ErrNotScalar, "backward: backward of a non-scalar"},
		{"shape", host(t, tensor.Float64, []float64{1}, 1), tensor.ErrShape, "seed is (1), want (2)"},
		{"rank", host(t, tensor.Float64, []float64{1, 1}, 1, 2), tensor.ErrShape, "seed is (1,2), want (2)"},
		{"dtype", host(t, tensor.Float32, []float64{1, 1}, 2), tensor.ErrDType, "seed is float32, want float64"},
		{"device", there, tensor.ErrDevice, "seed is on elsewhere:0, want on cpu"},
	} {
		tape := newTape(t)
		g, err := tape.BackwardFrom(ops.Square(tape.Watch(x)), c.seed)
		if !errors.Is(err, c.want) || g.Len() != 0 || (c.says != "" && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A seed that the caller owns is neither changed nor freed; nor is one of the tape.
	tape := newTape(t)
	seed := host(t, tensor.Float64, []float64{10, 100}, 2)
	placed := tape.Upload(seed)
	g, err := tape.BackwardFrom(ops.Square(tape.Watch(x)), placed)
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); !slices.Equal(got, []float64{20, 400}) {
		t.Errorf("%v", got)
	}
	if got := floats(t, tape, placed); !slices.Equal(got, []float64{10, 100}) || !tape.Owns(placed) {
		t.Errorf("the seed became %v", got)
	}
	// One element needs none, whatever its rank.
	tape = newTape(t)
	y := host(t, tensor.Float64, []float64{3}, 1, 1)
	if g, err = tape.Backward(ops.Square(tape.Watch(y))); err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(y)); got[0] != 6 {
		t.Errorf("%v", got)
	}
	// No element is no scalar.
	tape = newTape(t)
	if _, err := tape.Backward(tape.Watch(host(t, tensor.Float64, nil, 0))); !errors.Is(err, autograd.ErrNotScalar) {
		t.Errorf("%v", err)
	}
}

type elsewhere struct{ tensor.WriteCounter }

func (*elsewhere) Device() tensor.Device { return tensor.NewDevice("elsewhere", 0) }
func (*elsewhere) Size() int             { return 1 << 10 }

func TestBackwardTwice(t *testing.T) {
	tape := newTape(t)
	x := tape.Watch(scalar(t, 3))
	y := ops.Square(x).Keep()
	if _, err := tape.Backward(y); err != nil {
		t.Fatal(err)
	}
	if _, err := tape.Backward(y); !errors.Is(err, autograd.ErrBackwardTwice) {
		t.Errorf("%v", err)
	}
	// Nor may an operation be recorded after it, which no backward would see.
	tape = newTape(t)
	x = tape.Watch(scalar(t, 3))
	if _, err := tape.Backward(ops.Square(x)); err != nil {
		t.Fatal(err)
	}
	if y := ops.Exp(x); !errors.Is(y.Err(), autograd.ErrBackwardTwice) {
		t.Errorf("%v", y.Err())
	}
	if _, err := newTape(t).Backward(nil); !errors.Is(err, tensor.ErrMissing) {
		t.Errorf("backward of nil: %v", err)
	}
}

// The result may be the leaf itself.
func TestBackwardOfALeaf(t *testing.T) {
	tape := newTape(t)
	x := scalar(t, 3)
	g, err := tape.Backward(tape.Watch(x))
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); got[0] != 1 {
		t.Errorf("%v", got)
	}
}

func TestSavedTensorWritten(t *testing.T) {
	data := []float64{1, 2, 3, 4}
	for name, write := range map[string]func(x *tensor.Tensor) error{
		"itself": func(x *tensor.Tensor) error { return x.SetFloat64s(data) },
		"through another view": func(x *tensor.Tensor) error {
			row, err := x.Select(0, 1)
			if err != nil {
				return err
			}
			return row.SetFloat64s([]float64{7, 8})
		},
		"by a kernel": func(x *tensor.Tensor) error {
			turned, err := x.Transpose(0, 1)
			if err != nil {
				return err
			}
			return cpu.New().Fill(context.Background(), turned, 1)
		},
	} {
		tape := newTape(t)
		x := host(t, tensor.Float64, data, 2, 2)
		if err := x.SetFloat64s(data); err != nil { // the version need not begin at 0
			t.Fatal(err)
		}
		v := tape.Watch(x)
		y := ops.Sum(ops.Mul(ops.Neg(v), v), ops.All())
		if err := write(x); err != nil {
			t.Fatal(err)
		}
		_, err := tape.Backward(y)
		var op *autograd.OpError
		if !errors.Is(err, autograd.ErrModified) || !errors.As(err, &op) || op.Op != "mul" {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range []string{"mul: ", "(2,2) float64", "at version 1", "now at 2", "backward_test.go:"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", name, err, part)
			}
		}
	}
	// What no backward needs may be written: a sum saves nothing.
	tape := newTape(t)
	x := host(t, tensor.Float64, data, 2, 2)
	y := ops.Sum(ops.Add(tape.Watch(x), tape.Watch(x)), ops.All())
	if err := x.SetFloat64s(data); err != nil {
		t.Fatal(err)
	}
	if _, err := tape.Backward(y); err != nil {
		t.Error(err)
	}
	// What was written before it was saved is no error either.
	tape = newTape(t)
	v := tape.Watch(x)
	if err := x.SetFloat64s([]float64{2, 2, 2, 2}); err != nil {
		t.Fatal(err)
	}
	g, err := tape.Backward(ops.Sum(ops.Square(v), ops.All()))
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); !slices.Equal(got, []float64{4, 4, 4, 4}) {
		t.Errorf("%v", got)
	}
}

// Tensors in structs, slices and arrays of a node are seen, in a node that is
// no pointer too.
func TestSavedTensorsAreFound(t *testing.T) {
	type inner struct{ x *tensor.Tensor }
	for name, node := range map[string]func(x *tensor.Tensor) autograd.Node{
		"field":    func(x *tensor.Tensor) autograd.Node { return &saving[*tensor.Tensor]{x} },
		"slice":    func(x *tensor.Tensor) autograd.Node { return &saving[[]*tensor.Tensor]{[]*tensor.Tensor{nil, x}} },
		"array":    func(x *tensor.Tensor) autograd.Node { return &saving[[2]*tensor.Tensor]{[2]*tensor.Tensor{nil, x}} },
		"struct":   func(x *tensor.Tensor) autograd.Node { return &saving[inner]{inner{x}} },
		"structs":  func(x *tensor.Tensor) autograd.Node { return &saving[[]inner]{[]inner{{}, {x}}} },
		"pointer":  func(x *tensor.Tensor) autograd.Node { return &saving[*inner]{&inner{x}} },
		"pointers": func(x *tensor.Tensor) autograd.Node { return &saving[[]*inner]{[]*inner{nil, {x}}} },
		"map":      func(x *tensor.Tensor) autograd.Node { return &saving[map[string]inner]{map[string]inner{"x": {x}}} },
		"key": func(x *tensor.Tensor) autograd.Node {
			return &saving[map[*tensor.Tensor]int]{map[*tensor.Tensor]int{x: 1}}
		},
		"interface": func(x *tensor.Tensor) autograd.Node { return &saving[any]{inner{x}} },
		"ring": func(x *tensor.Tensor) autograd.Node {
			r := &ring{}
			r.next = &ring{next: r, x: x}
			return &saving[*ring]{r}
		},
		"var": func(x *tensor.Tensor) autograd.Node {
			return &saving[*autograd.Var]{newTape(t).Const(x)}
		},
		"no pointer": func(x *tensor.Tensor) autograd.Node { return saving[inner]{inner{x}} },
	} {
		tape := newTape(t)
		x := scalar(t, 1)
		y := double(tape.Watch(x), node(x))
		if err := x.SetFloat64s([]float64{2}); err != nil {
			t.Fatal(err)
		}
		if _, err := tape.Backward(y); !errors.Is(err, autograd.ErrModified) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type ring struct {
	next *ring
	x    *tensor.Tensor
}

type saving[T any] struct{ kept T }

func (saving[T]) Backward(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor {
	return []*tensor.Tensor{grad}
}

// A saved tensor that is itself the gradient is not freed under it.
func TestGradientMayBeASavedTensor(t *testing.T) {
	tape := newTape(t)
	x := scalar(t, 5)
	v := tape.Watch(x)
	n := &own{saved: tape.Full(tensor.Float64, 2)}
	n.backward = func(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor {
		return []*tensor.Tensor{n.saved}
	}
	noise := &own{backward: func(s *device.Stream, grad *tensor.Tensor, want []bool) []*tensor.Tensor {
		for range 8 {
			s.Full(tensor.Float64, -1000) // takes memory that was freed
		}
		return []*tensor.Tensor{s.Full(tensor.Float64, -100)}
	}}
	a := double(v, noise)
	b := double(v, n)
	g, err := tape.Backward(ops.Add(a, b))
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); got[0] != -98 {
		t.Errorf("%v, want -98", got)
	}
}

// A view on the way does not take the memory of what it is a view of.
func TestViewsShareMemory(t *testing.T) {
	tape := newTape(t)
	x := host(t, tensor.Float64, []float64{1, 2, 3, 4}, 4)
	y := ops.Square(tape.Watch(x))
	squares := ops.Square(y)
	parts := ops.Sum(ops.Select(ops.Reshape(y, 2, 2), 0, 1), ops.All())
	g, err := tape.Backward(ops.Add(ops.Sum(squares, ops.All()), parts))
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); !slices.Equal(got, []float64{4, 32, 108 + 6, 256 + 8}) {
		t.Errorf("%v", got)
	}
}

func TestManyUses(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(x *autograd.Var) *autograd.Var
		want float64 // at x = 3
	}{
		"both operands":     {func(x *autograd.Var) *autograd.Var { return ops.Mul(x, x) }, 6},
		"sum with itself":   {func(x *autograd.Var) *autograd.Var { return ops.Add(x, x) }, 2},
		"less itself":       {func(x *autograd.Var) *autograd.Var { return ops.Sub(x, x) }, 0},
		"over itself":       {func(x *autograd.Var) *autograd.Var { return ops.Div(x, x) }, 0},
		"node used twice":   {func(x *autograd.Var) *autograd.Var { y := ops.Square(x); return ops.Mul(y, y) }, 108},
		"node used in turn": {func(x *autograd.Var) *autograd.Var { y := ops.Square(x); return ops.Add(ops.Mul(y, x), y) }, 33},
		"diamond": {func(x *autograd.Var) *autograd.Var {
			y := ops.Square(x)
			return ops.Mul(ops.Neg(y), ops.MulScalar(y, 2)) // -2x^4
		}, -216},
		"diamond of diamonds": {func(x *autograd.Var) *autograd.Var {
			for range 20 {
				x = ops.Add(x, x)
			}
			return x
		}, 1 << 20},
		"unused branch": {func(x *autograd.Var) *autograd.Var { ops.Exp(x); y := ops.Square(x); ops.Log(y); return y }, 6},
		"view and base": {func(x *autograd.Var) *autograd.Var {
			return ops.Sum(ops.Mul(ops.Reshape(x, 1), ops.Expand(x, 4)), ops.All())
		}, 24},
	} {
		tape := newTape(t)
		x := scalar(t, 3)
		g, err := tape.Backward(c.f(tape.Watch(x)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := floats(t, tape, g.Of(x)); got[0] != c.want {
			t.Errorf("%s: %v, want %v", name, got[0], c.want)
		}
	}
}

// Gradients that are the same memory or the caller's are not added to in place.
func TestSharedGradientsStayApart(t *testing.T) {
	tape := newTape(t)
	a, b := host(t, tensor.Float64, []float64{1, 2}, 2), host(t, tensor.Float64, []float64{3, 4}, 2)
	seed := host(t, tensor.Float64, []float64{1, 10}, 2)
	va, vb := tape.Watch(a), tape.Watch(b)
	y := ops.Add(ops.Add(va, vb), ops.Add(va, ops.MulScalar(va, 3))) // 5a + b
	g, err := tape.BackwardFrom(y, seed)
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(a)); !slices.Equal(got, []float64{5, 50}) {
		t.Errorf("a: %v", got)
	}
	if got := floats(t, tape, g.Of(b)); !slices.Equal(got, []float64{1, 10}) {
		t.Errorf("b: %v", got)
	}
	if got, _ := seed.Float64s(); !slices.Equal(got, []float64{1, 10}) || seed.Memory().Version() != 0 {
		t.Errorf("the seed became %v", got)
	}
}

func TestChainOf100000(t *testing.T) {
	start := time.Now()
	tape := newTape(t)
	x := scalar(t, 1)
	y := tape.Watch(x)
	const n = 100000
	for i := range n {
		if i%2 == 0 {
			y = ops.MulScalar(y, 2)
		} else {
			y = ops.MulScalar(y, 0.5)
		}
	}
	y = ops.MulScalar(y, 3)
	g, err := tape.Backward(y)
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); got[0] != 3 {
		t.Errorf("%v", got)
	}
	took := time.Since(start)
	t.Logf("%d operations forth and back in %v", n, took)
	if took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

// Contributions to a 16-bit gradient are added in float32: in bfloat16 the sum
// of ones would stop at 256, in float16 at 2048.
func TestHalfGradientsAccumulateInFloat32(t *testing.T) {
	for _, c := range []struct {
		d    tensor.DType
		uses int
		want float64
	}{
		{tensor.BFloat16, 1000, 1000}, {tensor.BFloat16, 512, 512}, {tensor.BFloat16, 1, 1}, {tensor.BFloat16, 2, 2},
		{tensor.BFloat16, 259, 260}, // rounded once: 259 is a tie of 258 and 260
		{tensor.Float16, 3000, 3000}, {tensor.Float16, 2049, 2048},
		{tensor.Float32, 1000, 1000},
	} {
		tape := newTape(t)
		x := host(t, c.d, []float64{0}, 1)
		v := tape.Watch(x)
		var sum *autograd.Var
		for range c.uses {
			y := ops.Cast(v, tensor.Float32)
			if sum == nil {
				sum = y
			} else {
				sum = ops.Add(sum, y)
			}
		}
		g, err := tape.Backward(sum)
		if err != nil {
			t.Fatal(err)
		}
		got := g.Of(x)
		if got.DType() != c.d || !got.Shape().Equal(x.Shape()) {
			t.Errorf("the gradient of %v is %v", x, got)
		}
		if v := floats(t, tape, got); v[0] != c.want {
			t.Errorf("%d uses of a %v: %v, want %v", c.uses, c.d, v[0], c.want)
		}
	}
}

// The same for a value on the way.
func TestHalfGradientOnTheWay(t *testing.T) {
	tape := newTape(t)
	x := host(t, tensor.BFloat16, []float64{1}, 1)
	y := ops.MulScalar(tape.Watch(x), 2)
	var parts []*autograd.Var
	for range 1000 {
		parts = append(parts, y)
	}
	g, err := tape.Backward(ops.Sum(ops.Cast(ops.Concat(0, parts...), tensor.Float32), ops.All()))
	if err != nil {
		t.Fatal(err)
	}
	if got := floats(t, tape, g.Of(x)); got[0] != 2000 {
		t.Errorf("%v, want 2000", got)
	}
}

func TestWantedOnly(t *testing.T) {
	tape := newTape(t)
	var seen []bool
	n := &own{backward: func(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
		seen = slices.Clone(want)
		more := s.Full(tensor.Float64, 1, 1000)
		return []*tensor.Tensor{g, more, s.Full(tensor.Float64, 1, 1000), nil} // two more than wanted
	}}
	x, c := tape.Watch(scalar(t, 1)), tape.Const(scalar(t, 1))
	y := tape.Record(tape.Full(tensor.Float64, 1), n, x, nil, c, c)
	g, err := tape.Backward(y)
	if err != nil {
		t.Fatal(err)
	}
	if inUse, _, _ := tape.Device().(*cpu.Device).Memory(); inUse > 1000 {
		t.Errorf("%d bytes are held for gradients that nobody wanted", inUse)
	}
	if !slices.Equal(seen, []bool{true, false, false, false}) || g.Len() != 1 {
		t.Errorf("%v, %d gradients", seen, g.Len())
	}
	if got := floats(t, tape, g.Of(x.Tensor())); got[0] != 1 {
		t.Errorf("%v", got)
	}
}

// mlp is a step that uses views, broadcasts, matrix products and reductions.
func mlp(tape *autograd.Tape, x, w, b *tensor.Tensor) *autograd.Var {
	h := tape.Const(x)
	vw, vb := tape.Watch(w), tape.Watch(b)
	for range 3 {
		h = ops.GELU(ops.Add(ops.MatMul(h, ops.Transpose(vw, 0, 1)), vb))
		h = ops.Add(h, ops.Softmax(ops.Reshape(h, -1, 8), -1))
		h = ops.RMSNorm(h, vb, 1e-6)
	}
	return ops.Mean(ops.Square(h), ops.All())
}

func mlpTensors(t testing.TB, d tensor.DType) (x, w, b *tensor.Tensor) {
	fill := func(n int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = math.Sin(float64(i + 1))
		}
		return v
	}
	return host(t, d, fill(32*8), 32, 8), host(t, d, fill(64), 8, 8), host(t, d, fill(8), 8)
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Passes without a backward, released, leave nothing behind.
func TestForwardPassesDoNotGrow(t *testing.T) {
	dev := newDevice(t)
	x, w, b := mlpTensors(t, tensor.Float32)
	pass := func() {
		tape := autograd.NewTape(context.Background(), dev)
		defer tape.Release()
		if _, err := mlp(tape, x, w, b).Item(); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		pass()
	}
	_, peak, _ := dev.Memory()
	before := heap()
	for range 1000 {
		pass()
	}
	inUse, peak2, cached := dev.Memory()
	after := heap()
	if inUse != 0 || peak2 != peak || cached > peak+peak/4 {
		t.Errorf("%d bytes in use, peak %d, then %d, %d kept", inUse, peak, peak2, cached)
	}
	if after > before+256<<10 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}

// A step needs no more memory than the one before, gives the same bits, and
// its backward leaves nothing but the gradients and the result.
func TestStepsReuseMemory(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		dev := newDevice(t)
		x, w, b := mlpTensors(t, d)
		var first []uint64
		var peak, kept int
		for i := range 10 {
			tape := autograd.NewTape(context.Background(), dev)
			g, err := tape.Backward(mlp(tape, x, w, b))
			if err != nil {
				t.Fatal(err)
			}
			left, _, _ := dev.Memory()
			host, err := tape.Download(g.Of(w))
			if err != nil {
				t.Fatal(err)
			}
			bits, _ := host.Bits()
			tape.Release()
			inUse, now, _ := dev.Memory()
			if inUse != 0 {
				t.Fatalf("%v step %d left %d bytes", d, i, inUse)
			}
			// gradients of w and b and the result, in the allocator's classes of 64 bytes
			if left > 64*d.Size()+3*64+128 {
				t.Errorf("%v step %d: %d bytes are held after the backward", d, i, left)
			}
			if i == 0 {
				first, peak, kept = bits, now, left
			} else if now != peak || left != kept || !slices.Equal(bits, first) {
				t.Errorf("%v step %d: peak %d, was %d; %d held, was %d; the same bits: %v", d, i, now, peak, left, kept, slices.Equal(bits, first))
			}
		}
	}
}

// raceDetector says that this binary was built with -race.
var raceDetector bool

// Go's own allocations of a step are few and do not depend on the sizes.
func TestStepAllocations(t *testing.T) {
	if raceDetector { // counted by every run without the detector
		t.Skip("with the race detector sync.Pool drops a part of what it is given, at random, so that scratch space is allocated anew")
	}
	dev := newDevice(t)
	count := func(rows int) float64 {
		x, w, b := host(t, tensor.Float32, make([]float64, rows*8), rows, 8), host(t, tensor.Float32, make([]float64, 64), 8, 8), host(t, tensor.Float32, make([]float64, 8), 8)
		step := func() {
			tape := autograd.NewTape(context.Background(), dev)
			defer tape.Release()
			if _, err := tape.Backward(mlp(tape, x, w, b)); err != nil {
				t.Fatal(err)
			}
		}
		step()
		return testing.AllocsPerRun(5, step)
	}
	small, large := count(4), count(4096)
	t.Logf("%.0f allocations for 4 rows, %.0f for 4096", small, large)
	if large > small*1.5+100 {
		t.Errorf("allocations grow with the data: %.0f for 4 rows, %.0f for 4096", small, large)
	}
}

func TestCancelledWithinAStep(t *testing.T) {
	dev := newDevice(t)
	x, w, b := mlpTensors(t, tensor.Float32)
	for _, when := range []string{"before", "forward", "backward"} {
		ctx, cancel := context.WithCancel(context.Background())
		tape := autograd.NewTape(ctx, dev)
		if when == "before" {
			cancel()
		}
		y := mlp(tape, x, w, b)
		if when == "forward" {
			cancel()
			y = ops.Exp(y)
		}
		if when == "backward" {
			n := &own{backward: func(s *device.Stream, g *tensor.Tensor, want []bool) []*tensor.Tensor {
				cancel()
				return []*tensor.Tensor{g}
			}}
			y = double(y, n)
		}
		g, err := tape.Backward(y)
		if !errors.Is(err, context.Canceled) || g.Len() != 0 {
			t.Errorf("%s: %v, %d gradients", when, err, g.Len())
		}
		tape.Release()
		if inUse, _, _ := dev.Memory(); inUse != 0 {
			t.Errorf("%s: %d bytes are left", when, inUse)
		}
		cancel()
	}
	// Within one kernel: it ends long before its time.
	ctx, cancel := context.WithCancel(context.Background())
	tape := autograd.NewTape(ctx, dev)
	defer tape.Release()
	big := tape.Full(tensor.Float32, 0.5, 1<<22)
	v := tape.Watch(big)
	time.AfterFunc(2*time.Millisecond, cancel)
	for range 200 {
		ops.Erf(v) // some 40 ms each
		if tape.Err() != nil {
			break
		}
	}
	if !errors.Is(tape.Err(), context.Canceled) {
		t.Errorf("%v", tape.Err())
	}
}

func TestReleased(t *testing.T) {
	tape := autograd.NewTape(context.Background(), newDevice(t))
	x := tape.Watch(scalar(t, 2))
	y := ops.Square(x)
	tape.Release()
	tape.Release()
	if _, err := tape.Backward(y); !errors.Is(err, device.ErrReleased) {
		t.Errorf("%v", err)
	}
	if z := ops.Square(x); z.Tensor() != nil || !errors.Is(z.Err(), device.ErrReleased) {
		t.Errorf("%v", z.Err())
	}
}

func BenchmarkChain(b *testing.B) {
	dev := newDevice(b)
	x := scalar(b, 1)
	for b.Loop() {
		tape := autograd.NewTape(context.Background(), dev)
		y := tape.Watch(x)
		for range 1000 {
			y = ops.MulScalar(y, 1)
		}
		if _, err := tape.Backward(y); err != nil {
			b.Fatal(err)
		}
		tape.Release()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/1000, "ns/op-and-backward")
}
