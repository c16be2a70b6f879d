package ops_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/autograd/gradcheck"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// check is one use of an operation. Each is compared with a plain computation
// and with finite differences, on dense and strided operands, and must give the
// same bits on any view of the same numbers.
type check struct {
	op       string         // the exported function
	about    string         // what is special about this use
	shapes   []tensor.Shape // of the floating-point operands
	domain   func(operand int, x float64) float64
	apply    func(t *autograd.Tape, in []*autograd.Var) *autograd.Var
	want     func(in []array) array
	optional []int // operands that may be nil
	anyType  bool  // integers are accepted too
	several  bool  // an operand's gradient is a sum over several uses, each rounded
}

func (c check) name() string {
	var parts []string
	if c.about != "" {
		parts = append(parts, c.about)
	}
	for _, s := range c.shapes {
		parts = append(parts, s.String())
	}
	return c.op + "/" + strings.Join(parts, " ")
}

// numbers are the operands' elements: normal, moved into the domain.
func (c check) numbers() [][]float64 {
	h := fnv.New64a()
	h.Write([]byte(c.name()))
	out := make([][]float64, len(c.shapes))
	for i, s := range c.shapes {
		out[i] = normal(h.Sum64()+uint64(i), s.Len())
		if c.domain != nil {
			for j, x := range out[i] {
				out[i][j] = c.domain(i, x)
			}
		}
	}
	return out
}

func checks() []check {
	var all []check
	for _, family := range [][]check{arithmeticChecks(), shapeChecks(), reduceChecks(), matmulChecks(), softmaxChecks(), normChecks(),
		lossChecks(), embeddingChecks(), rotaryChecks(), attentionChecks(), dropoutChecks()} {
		all = append(all, family...)
	}
	return all
}

var (
	dev    = cpu.New(cpu.Threads(2))
	floats = []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16}
)

func normal(seed uint64, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = random.Source{Seed: seed}.Normal(uint64(i))
	}
	return x
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newTape(t testing.TB) *autograd.Tape {
	tape := autograd.NewTape(context.Background(), dev)
	t.Cleanup(tape.Release)
	return tape
}

// layout is how a tensor lies in memory.
type layout string

var layouts = []layout{"dense", "permuted", "sliced", "stepped"}

// laid is a tensor of the given elements that lies in memory as the layout says.
func laid(l layout, d tensor.DType, x []float64, shape ...int) *tensor.Tensor {
	var t *tensor.Tensor
	switch l {
	case "dense":
		return must(tensor.FromFloat64s(d, x, shape...))
	case "permuted": // column-major
		var back, axes []int
		for i := len(shape) - 1; i >= 0; i-- {
			back, axes = append(back, shape[i]), append(axes, i)
		}
		t = must(must(tensor.Zeros(d, back...)).Permute(axes...))
	case "sliced": // inside a larger block whose other elements are 99
		outer := []int{2}
		for _, n := range shape {
			outer = append(outer, n+3)
		}
		t = must(tensor.Zeros(d, outer...))
		all := make([]float64, t.Len())
		for i := range all {
			all[i] = 99
		}
		must(0, t.SetFloat64s(all))
		t = must(t.Select(0, 1))
		for i, n := range shape {
			t = must(t.Slice(i, 2, 2+n))
		}
	case "stepped": // every third element, from the second on
		strides, n := make([]int, len(shape)), 3
		for i := len(shape) - 1; i >= 0; i-- {
			strides[i] = n
			n *= max(shape[i], 1)
		}
		t = must(tensor.NewStrided(tensor.NewHost((n+2)*d.Size()), d, shape, strides, 2))
	}
	must(0, t.SetFloat64s(x))
	return t
}

// repeated is a tensor of a shape whose first axis longer than 1 has stride 0;
// nil if it has no such axis.
func repeated(d tensor.DType, x []float64, shape ...int) *tensor.Tensor {
	t := laid("dense", d, x, shape...)
	for i, n := range shape {
		if n > 1 {
			return must(must(t.Slice(i, 0, 1)).Expand(shape...))
		}
	}
	return nil
}

func denseCopy(x *tensor.Tensor) *tensor.Tensor {
	return laid("dense", x.DType(), must(x.Float64s()), x.Shape()...)
}

// outcome is the bits of a result and of the operands' gradients.
type outcome struct {
	out   *tensor.Tensor
	grads []*tensor.Tensor // nil where the operand has none
}

// evaluate applies an operation to watched operands and goes back from a seed
// gradient; a nil seed leaves that out.
func evaluate(apply func(*autograd.Tape, []*autograd.Var) *autograd.Var, in []*tensor.Tensor, seed func(d tensor.DType, shape tensor.Shape) *tensor.Tensor) (outcome, error) {
	tape := autograd.NewTape(context.Background(), dev)
	defer tape.Release()
	vars := make([]*autograd.Var, len(in))
	for i, x := range in {
		vars[i] = tape.Watch(x)
	}
	y := apply(tape, vars)
	out, err := y.Download()
	if err != nil || seed == nil {
		return outcome{out: out}, err
	}
	g, err := tape.BackwardFrom(y, seed(y.DType(), y.Shape()))
	if err != nil {
		return outcome{}, err
	}
	r := outcome{out: out}
	for _, x := range in {
		var gx *tensor.Tensor
		if g.Of(x) != nil {
			if gx, err = tape.Download(g.Of(x)); err != nil {
				return outcome{}, err
			}
		}
		r.grads = append(r.grads, gx)
	}
	return r, nil
}

func denseSeed(d tensor.DType, shape tensor.Shape) *tensor.Tensor {
	return laid("dense", d, normal(11, shape.Len()), shape...)
}

func same(a, b *tensor.Tensor) error {
	if a == nil || b == nil {
		if a != b {
			return fmt.Errorf("%v, want %v", a, b)
		}
		return nil
	}
	if a.DType() != b.DType() || !a.Shape().Equal(b.Shape()) {
		return fmt.Errorf("%v, want %v", a, b)
	}
	x, y := must(a.Bits()), must(b.Bits())
	for i := range x {
		if x[i] != y[i] {
			return fmt.Errorf("element %d is %v, want %v", i, must(a.Float64s())[i], must(b.Float64s())[i])
		}
	}
	return nil
}

func sameOutcome(t *testing.T, what string, got, want outcome) {
	t.Helper()
	if err := same(got.out, want.out); err != nil {
		t.Errorf("%s: result: %v", what, err)
	}
	for i := range want.grads {
		if err := same(got.grads[i], want.grads[i]); err != nil {
			t.Errorf("%s: gradient of operand %d: %v", what, i, err)
		}
	}
}

func TestGradients(t *testing.T) {
	for _, c := range checks() {
		t.Run(c.name(), func(t *testing.T) {
			values := c.numbers()
			for _, l := range layouts[:3] {
				var in []*tensor.Tensor
				for i, s := range c.shapes {
					in = append(in, laid(l, tensor.Float64, values[i], s...))
				}
				r, err := gradcheck.Check(dev, c.apply, in, gradcheck.Options{Tolerance: 1e-9})
				if err != nil || r.Failed > 0 {
					t.Errorf("%s: %v, %v", l, r, err)
				}
			}
		})
	}
}

// TestResults compares every operation with a plain computation in float64 on
// the operands rounded to each dtype.
func TestResults(t *testing.T) {
	for _, c := range checks() {
		if c.want == nil {
			t.Errorf("%s: no plain computation", c.name())
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			for _, d := range floats {
				var in []*tensor.Tensor
				var plain []array
				scale := 1.0
				for i, x := range c.numbers() {
					in = append(in, laid("dense", d, x, c.shapes[i]...))
					plain = append(plain, array{c.shapes[i], must(in[i].Float64s())})
					scale = math.Max(scale, largest(plain[i].data))
				}
				r, err := evaluate(c.apply, in, nil)
				if err != nil {
					t.Errorf("%v: %v", d, err)
					continue
				}
				want := c.want(plain)
				if err := near(r.out, want, math.Max(scale, largest(want.data))); err != nil {
					t.Errorf("%v: %v", d, err)
				}
			}
		})
	}
}

// TestGradientsOfEachDType compares gradients with those in float64 of the same
// operands and seed: nothing between them may be rounded to 16 bits.
func TestGradientsOfEachDType(t *testing.T) {
	for _, c := range checks() {
		if c.several {
			continue
		}
		t.Run(c.name(), func(t *testing.T) {
			for _, d := range floats {
				var in, wide []*tensor.Tensor
				for i, x := range c.numbers() {
					in = append(in, laid("dense", d, x, c.shapes[i]...))
					wide = append(wide, laid("dense", tensor.Float64, must(in[i].Float64s()), c.shapes[i]...))
				}
				seed := func(to tensor.DType, shape tensor.Shape) *tensor.Tensor {
					return laid("dense", to, must(laid("dense", d, normal(11, shape.Len()), shape...).Float64s()), shape...)
				}
				got, err := evaluate(c.apply, in, seed)
				want, err2 := evaluate(c.apply, wide, seed)
				if err != nil || err2 != nil {
					t.Errorf("%v: %v, %v", d, err, err2)
					continue
				}
				for i, g := range got.grads {
					if g == nil || g.DType() != d {
						t.Errorf("the gradient of operand %d, a %v, is %v", i, d, g)
						continue
					}
					x := must(want.grads[i].Float64s())
					if err := near(g, array{c.shapes[i], x}, math.Max(1, largest(x))); err != nil {
						t.Errorf("%v: gradient of operand %d: %v", d, i, err)
					}
				}
			}
		})
	}
}

// TestViews: the same numbers give the same bits however they lie in memory.
func TestViews(t *testing.T) {
	for _, c := range checks() {
		t.Run(c.name(), func(t *testing.T) {
			values := c.numbers()
			for _, d := range floats {
				var in []*tensor.Tensor
				for i, s := range c.shapes {
					in = append(in, laid("dense", d, values[i], s...))
				}
				want, err := evaluate(c.apply, in, denseSeed)
				if err != nil {
					t.Errorf("%v: %v", d, err)
					continue
				}
				for _, l := range layouts[1:] {
					for i, s := range c.shapes {
						in[i] = laid(l, d, values[i], s...)
					}
					got, err := evaluate(c.apply, in, denseSeed)
					if err != nil {
						t.Errorf("%v %s: %v", d, l, err)
						continue
					}
					sameOutcome(t, fmt.Sprint(d, " ", l), got, want)
				}
				for i, s := range c.shapes { // one operand expanded, the others as they were
					x := repeated(d, values[i], s...)
					if x == nil {
						continue
					}
					in[i] = x
					got, err := evaluate(c.apply, in, denseSeed)
					in[i] = denseCopy(x)
					want, err2 := evaluate(c.apply, in, denseSeed)
					if err != nil || err2 != nil {
						t.Errorf("%v operand %d expanded: %v, %v", d, i, err, err2)
						continue
					}
					sameOutcome(t, fmt.Sprint(d, " operand ", i, " expanded"), got, want)
				}
			}
		})
	}
}

// TestSeeds: gradients depend on the numbers of the seed, not on its strides.
func TestSeeds(t *testing.T) {
	for _, c := range checks() {
		t.Run(c.name(), func(t *testing.T) {
			values := c.numbers()
			for _, d := range floats {
				var in []*tensor.Tensor
				for i, s := range c.shapes {
					in = append(in, laid("dense", d, values[i], s...))
				}
				compare := func(what string, make func(d tensor.DType, shape tensor.Shape) *tensor.Tensor) {
					got, err := evaluate(c.apply, in, make)
					want, err2 := evaluate(c.apply, in, func(d tensor.DType, shape tensor.Shape) *tensor.Tensor { return denseCopy(make(d, shape)) })
					if err != nil || err2 != nil {
						t.Errorf("%v %s: %v, %v", d, what, err, err2)
						return
					}
					sameOutcome(t, fmt.Sprint(d, " ", what), got, want)
				}
				for _, l := range layouts[1:] {
					compare(string(l), func(d tensor.DType, shape tensor.Shape) *tensor.Tensor {
						return laid(l, d, normal(11, shape.Len()), shape...)
					})
				}
				compare("one number", func(d tensor.DType, shape tensor.Shape) *tensor.Tensor {
					return must(laid("dense", d, []float64{0.7}).Expand(shape...))
				})
				compare("one axis expanded", func(d tensor.DType, shape tensor.Shape) *tensor.Tensor {
					if r := repeated(d, normal(11, shape.Len()), shape...); r != nil {
						return r
					}
					return denseSeed(d, shape)
				})
			}
		})
	}
}

// TestWrongOperands gives every operation operands of a wrong kind.
func TestWrongOperands(t *testing.T) {
	for _, c := range checks() {
		t.Run(c.name(), func(t *testing.T) {
			values := c.numbers()
			place := func(tape *autograd.Tape) []*autograd.Var {
				vars := make([]*autograd.Var, len(c.shapes))
				for i, s := range c.shapes {
					vars[i] = tape.Watch(laid("dense", tensor.Float64, values[i], s...))
				}
				return vars
			}
			for i, s := range c.shapes {
				tape := newTape(t)
				in := place(tape)
				in[i] = tape.Const(laid("dense", tensor.Int64, make([]float64, s.Len()), s...))
				if y := c.apply(tape, in); !c.anyType {
					refused(t, fmt.Sprint("integer operand ", i), c.op, tensor.ErrDType, y.Err())
				}
				if len(c.shapes) > 1 {
					tape = newTape(t)
					in = place(tape)
					in[i] = tape.Watch(laid("dense", tensor.Float32, values[i], s...))
					refused(t, fmt.Sprint("float32 operand ", i), c.op, tensor.ErrDType, c.apply(tape, in).Err())

					tape, other := newTape(t), newTape(t)
					in = place(tape)
					in[i] = place(other)[i]
					refused(t, fmt.Sprint("operand ", i, " of another tape"), c.op, autograd.ErrOtherTape, c.apply(tape, in).Err())
				}
				tape = newTape(t)
				in = place(tape)
				in[i] = nil
				y := c.apply(tape, in)
				if contains(c.optional, i) {
					if y.Err() != nil {
						t.Errorf("operand %d left out: %v", i, y.Err())
					}
				} else if len(c.shapes) > 1 {
					refused(t, fmt.Sprint("nil operand ", i), c.op, tensor.ErrMissing, y.Err())
				} else if !errors.Is(y.Err(), tensor.ErrMissing) {
					t.Errorf("nil operand: %v", y.Err())
				}
			}
			// After a failure the operation does nothing and the failure stays.
			tape := newTape(t)
			in := place(tape)
			first := errors.New("the first failure")
			tape.Fail(first)
			if y := c.apply(tape, in); !errors.Is(y.Err(), first) {
				t.Errorf("after a failure: %v", y.Err())
			}
		})
	}
}

func contains(list []int, x int) bool {
	for _, y := range list {
		if x == y {
			return true
		}
	}
	return false
}

// refused expects an error of a kind whose message begins with the operation's
// name and holds some words.
func refused(t *testing.T, what, op string, kind, err error, words ...string) {
	t.Helper()
	var oe *autograd.OpError
	switch {
	case !errors.Is(err, kind):
		t.Errorf("%s: got %v, want an error of kind %q", what, err, kind)
	case !errors.As(err, &oe):
		t.Errorf("%s: %v is no OpError", what, err)
	case oe.Op == "" || !strings.HasPrefix(strings.ToLower(op), letters(oe.Op)) || !strings.HasPrefix(err.Error(), oe.Op+":"):
		t.Errorf("%s: %v does not name %s", what, err, op)
	case !strings.HasSuffix(strings.Split(oe.Where, ":")[0], "_test.go"):
		t.Errorf("%s: %v does not say where", what, err)
	}
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not hold %q", what, err, w)
		}
	}
}

func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, strings.ToLower(s))
}

// refusal is a wrong call.
type refusal struct {
	what  string
	op    string
	kind  error
	words []string // of the message
	call  func(tape *autograd.Tape) *autograd.Var
}

func testRefusals(t *testing.T, list []refusal) {
	t.Helper()
	for _, r := range list {
		tape := newTape(t)
		y := r.call(tape)
		refused(t, r.op+": "+r.what, r.op, r.kind, tape.Err(), r.words...)
		if y.Tensor() != nil {
			t.Errorf("%s: %s: a result in spite of the failure", r.op, r.what)
		}
	}
}

// Operands of tests that need no more than a shape.
func ones(tape *autograd.Tape, shape ...int) *autograd.Var { return full(tape, 1, shape...) }

func full(tape *autograd.Tape, x float64, shape ...int) *autograd.Var {
	data := make([]float64, tensor.Shape(shape).Len())
	for i := range data {
		data[i] = x
	}
	return watch(tape, tensor.Float64, data, shape...)
}

func watch(tape *autograd.Tape, d tensor.DType, x []float64, shape ...int) *autograd.Var {
	return tape.Watch(laid("dense", d, x, shape...))
}

func ids(tape *autograd.Tape, x []float64, shape ...int) *autograd.Var {
	return tape.Const(laid("dense", tensor.Int64, x, shape...))
}

// gradients are a scalar's, or those of a seed of ones.
func gradients(t *testing.T, y *autograd.Var, of ...*autograd.Var) [][]float64 {
	t.Helper()
	if y.Err() != nil {
		t.Fatal(y.Err())
	}
	n := y.Shape().Len()
	seed := make([]float64, n)
	for i := range seed {
		seed[i] = 1
	}
	tape := y.Tape()
	g, err := tape.BackwardFrom(y, laid("dense", y.DType(), seed, y.Shape()...))
	if err != nil {
		t.Fatal(err)
	}
	var out [][]float64
	for _, x := range of {
		gx := g.Of(x.Tensor())
		if gx == nil {
			t.Fatalf("no gradient of %v", x)
		}
		out = append(out, must(must(tape.Download(gx)).Float64s()))
	}
	return out
}

func values(t *testing.T, y *autograd.Var) []float64 {
	t.Helper()
	x, err := y.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// equal compares numbers exactly; NaN equals NaN.
func equal(t *testing.T, what string, got, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] && !(math.IsNaN(got[i]) && math.IsNaN(want[i])) {
			t.Errorf("%s: %v, want %v", what, got, want)
			return
		}
	}
}

func close(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= tolerance) && got[i] != want[i] {
			t.Errorf("%s: element %d is %v, want %v", what, i, got[i], want[i])
			return
		}
	}
}

func largest(x []float64) float64 {
	m := 0.0
	for _, v := range x {
		if !math.IsInf(v, 0) {
			m = math.Max(m, math.Abs(v))
		}
	}
	return m
}

// near compares a result with float64 answers: they must be rounded once to its
// dtype, but for an error before that of a small part of the largest number in sight.
func near(got *tensor.Tensor, want array, scale float64) error {
	if !got.Shape().Equal(want.shape) {
		return fmt.Errorf("shape %v, want %v", got.Shape(), want.shape)
	}
	d := got.DType()
	tolerance := 1e-6
	if d == tensor.Float64 {
		tolerance = 1e-14
	}
	bits := map[tensor.DType]int{tensor.Float16: 11, tensor.BFloat16: 8}[d]
	for i, g := range must(got.Float64s()) {
		w := want.data[i]
		allowed := tolerance * scale
		if bits > 0 && w != 0 {
			_, e := math.Frexp(w)
			allowed += math.Ldexp(0.5, max(e-bits, -24))
		}
		if g != tensor.Round(d, w) && !(math.Abs(g-w) <= allowed) && !(math.IsNaN(g) && math.IsNaN(w)) {
			return fmt.Errorf("element %d is %v, want %v", i, g, w)
		}
	}
	return nil
}

// array is what the plain computations work on: numbers in row-major order.
type array struct {
	shape tensor.Shape
	data  []float64
}

// at is an element by its index; further axes in front are left out and axes
// of size 1 repeated, as in broadcasting.
func (a array) at(index ...int) float64 {
	index = index[len(index)-len(a.shape):]
	k := 0
	for i, n := range a.shape {
		j := index[i]
		if n == 1 {
			j = 0
		}
		k = k*n + j
	}
	return a.data[k]
}

// build makes an array from the value at each index.
func build(shape tensor.Shape, f func(index []int) float64) array {
	a := array{shape, make([]float64, shape.Len())}
	index := make([]int, len(shape))
	for i := range a.data {
		a.data[i] = f(index)
		for j := len(shape) - 1; j >= 0; j-- {
			if index[j]++; index[j] < shape[j] {
				break
			}
			index[j] = 0
		}
	}
	return a
}

// fold replaces the elements along axes by one number.
func fold(x array, axes []int, keep bool, f func([]float64) float64) array {
	folded := make([]bool, len(x.shape))
	for _, a := range axes {
		folded[a] = true
	}
	kept, out := append(tensor.Shape{}, x.shape...), tensor.Shape{}
	for i := range kept {
		if folded[i] {
			kept[i] = 1
		}
		if !folded[i] || keep {
			out = append(out, kept[i])
		}
	}
	y := build(kept, func(index []int) float64 {
		var list []float64
		build(x.shape, func(at []int) float64 {
			for i := range at {
				if !folded[i] && at[i] != index[i] {
					return 0
				}
			}
			list = append(list, x.at(at...))
			return 0
		})
		return f(list)
	})
	y.shape = out
	return y
}

// TestEveryOperationIsChecked reads the package's exported functions: each that
// gives a Var must be among the checks, so that none is without a gradient check.
func TestEveryOperationIsChecked(t *testing.T) {
	checked := map[string]bool{}
	for _, c := range checks() {
		checked[c.op] = true
	}
	for _, name := range operations(t) {
		if !checked[name] {
			t.Errorf("no check of %s", name)
		}
		delete(checked, name)
	}
	for name := range checked {
		t.Errorf("a check of %s, which is no operation", name)
	}
}

func operations(t *testing.T) []string {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !fn.Name.IsExported() || fn.Type.Results == nil {
				continue
			}
			for _, r := range fn.Type.Results.List {
				if isVar(r.Type) {
					names = append(names, fn.Name.Name)
				}
			}
		}
	}
	if len(names) < 40 {
		t.Fatalf("only %d operations found", len(names))
	}
	return names
}

// isVar reports whether a type is *autograd.Var or made of it.
func isVar(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		found = found || ok && s.Sel.Name == "Var"
		return true
	})
	return found
}
