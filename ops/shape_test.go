package ops_test

import (
	"math"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

func shapeChecks() []check {
	var list []check
	one := func(op, about string, s tensor.Shape, f unaryOp, want func(array) array) {
		list = append(list, check{op: op, about: about, shapes: []tensor.Shape{s}, anyType: true,
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return f(in[0]) },
			want:  func(in []array) array { return want(in[0]) }})
	}
	for _, s := range []tensor.Shape{{}, {13}, {3, 7}, {2, 0}} {
		one("Cast", "", s, func(x *autograd.Var) *autograd.Var { return ops.Cast(x, x.DType()) }, func(x array) array { return x })
	}
	for _, r := range []struct{ from, to, is tensor.Shape }{
		{tensor.Shape{}, tensor.Shape{1, 1}, tensor.Shape{1, 1}}, {tensor.Shape{1}, tensor.Shape{}, tensor.Shape{}}, {tensor.Shape{3, 7}, tensor.Shape{-1}, tensor.Shape{21}},
		{tensor.Shape{2, 3, 4}, tensor.Shape{4, -1}, tensor.Shape{4, 6}}, {tensor.Shape{13}, tensor.Shape{13, 1}, tensor.Shape{13, 1}}, {tensor.Shape{0, 3}, tensor.Shape{3, 0, 2}, tensor.Shape{3, 0, 2}},
	} {
		one("Reshape", r.to.String(), r.from, func(x *autograd.Var) *autograd.Var { return ops.Reshape(x, r.to...) }, func(x array) array { return array{r.is, x.data} })
	}
	for _, p := range []struct{ shape, axes tensor.Shape }{
		{tensor.Shape{}, nil}, {tensor.Shape{3}, tensor.Shape{0}}, {tensor.Shape{3, 7}, tensor.Shape{1, 0}}, {tensor.Shape{2, 3, 4}, tensor.Shape{2, 0, 1}}, {tensor.Shape{2, 3, 4}, tensor.Shape{-2, -1, 0}},
		{tensor.Shape{2, 3, 1, 5}, tensor.Shape{3, 1, 0, 2}}, {tensor.Shape{0, 3}, tensor.Shape{1, 0}},
	} {
		one("Permute", p.axes.String(), p.shape, func(x *autograd.Var) *autograd.Var { return ops.Permute(x, p.axes...) }, func(x array) array {
			var to tensor.Shape
			axes := make([]int, len(p.axes))
			for i, a := range p.axes {
				axes[i] = (a + len(axes)) % len(axes)
				to = append(to, x.shape[axes[i]])
			}
			return build(to, func(i []int) float64 {
				from := make([]int, len(i))
				for k, a := range axes {
					from[a] = i[k]
				}
				return x.at(from...)
			})
		})
	}
	one("Transpose", "0 and 1", tensor.Shape{3, 7}, func(x *autograd.Var) *autograd.Var { return ops.Transpose(x, 0, 1) }, func(x array) array {
		return build(tensor.Shape{7, 3}, func(i []int) float64 { return x.at(i[1], i[0]) })
	})
	one("Transpose", "-1 and 0", tensor.Shape{2, 3, 5}, func(x *autograd.Var) *autograd.Var { return ops.Transpose(x, -1, 0) }, func(x array) array {
		return build(tensor.Shape{5, 3, 2}, func(i []int) float64 { return x.at(i[2], i[1], i[0]) })
	})
	one("Transpose", "an axis with itself", tensor.Shape{3, 1}, func(x *autograd.Var) *autograd.Var { return ops.Transpose(x, 1, 1) }, func(x array) array { return x })
	one("Squeeze", "1", tensor.Shape{3, 1, 7}, func(x *autograd.Var) *autograd.Var { return ops.Squeeze(x, 1) }, func(x array) array { return array{tensor.Shape{3, 7}, x.data} })
	one("Squeeze", "-1", tensor.Shape{1}, func(x *autograd.Var) *autograd.Var { return ops.Squeeze(x, -1) }, func(x array) array { return array{tensor.Shape{}, x.data} })
	one("Unsqueeze", "0", tensor.Shape{}, func(x *autograd.Var) *autograd.Var { return ops.Unsqueeze(x, 0) }, func(x array) array { return array{tensor.Shape{1}, x.data} })
	one("Unsqueeze", "-1", tensor.Shape{3, 7}, func(x *autograd.Var) *autograd.Var { return ops.Unsqueeze(x, -1) }, func(x array) array { return array{tensor.Shape{3, 7, 1}, x.data} })
	one("Unsqueeze", "1", tensor.Shape{3, 0}, func(x *autograd.Var) *autograd.Var { return ops.Unsqueeze(x, 1) }, func(x array) array { return array{tensor.Shape{3, 1, 0}, x.data} })
	for _, e := range []struct{ from, to tensor.Shape }{
		{tensor.Shape{}, tensor.Shape{2, 3}}, {tensor.Shape{3, 1}, tensor.Shape{3, 7}}, {tensor.Shape{1, 3, 1}, tensor.Shape{2, 5, 3, 4}}, {tensor.Shape{3}, tensor.Shape{3}}, {tensor.Shape{7}, tensor.Shape{13, 7}},
		{tensor.Shape{1, 3}, tensor.Shape{0, 3}},
	} {
		one("Expand", e.to.String(), e.from, func(x *autograd.Var) *autograd.Var { return ops.Expand(x, e.to...) }, func(x array) array {
			return build(e.to, func(i []int) float64 { return x.at(i...) })
		})
	}
	for _, s := range []struct {
		from             tensor.Shape
		axis, start, end int
	}{
		{tensor.Shape{13}, 0, 0, 13}, {tensor.Shape{13}, -1, 12, 13}, {tensor.Shape{3, 7}, 1, 2, 5}, {tensor.Shape{3, 7}, -2, 1, 2}, {tensor.Shape{3, 7}, 0, 1, 1}, {tensor.Shape{2, 3, 5}, 1, 1, 3},
	} {
		one("Slice", "", s.from, func(x *autograd.Var) *autograd.Var { return ops.Slice(x, s.axis, s.start, s.end) }, func(x array) array {
			to, a := append(tensor.Shape{}, x.shape...), (s.axis+len(x.shape))%len(x.shape)
			to[a] = s.end - s.start
			return build(to, func(i []int) float64 {
				from := append([]int{}, i...)
				from[a] += s.start
				return x.at(from...)
			})
		})
	}
	one("Select", "0 of axis 0", tensor.Shape{3, 7}, func(x *autograd.Var) *autograd.Var { return ops.Select(x, 0, 0) }, func(x array) array {
		return build(tensor.Shape{7}, func(i []int) float64 { return x.at(0, i[0]) })
	})
	one("Select", "the last of axis -1", tensor.Shape{3, 7}, func(x *autograd.Var) *autograd.Var { return ops.Select(x, -1, -1) }, func(x array) array {
		return build(tensor.Shape{3}, func(i []int) float64 { return x.at(i[0], 6) })
	})
	one("Select", "the only", tensor.Shape{1}, func(x *autograd.Var) *autograd.Var { return ops.Select(x, 0, 0) }, func(x array) array { return array{tensor.Shape{}, x.data} })

	for _, c := range []struct {
		axis   int
		shapes []tensor.Shape
	}{
		{0, []tensor.Shape{{3}}}, {0, []tensor.Shape{{1}, {3}, {7}}}, {1, []tensor.Shape{{3, 1}, {3, 7}, {3, 2}}}, {-2, []tensor.Shape{{2, 3, 1}, {2, 0, 1}, {2, 5, 1}}}, {0, []tensor.Shape{{0}, {2, 3}, {1, 3}}}, {0, []tensor.Shape{{0}, {0}}},
	} {
		list = append(list, check{op: "Concat", shapes: c.shapes,
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Concat(c.axis, in...) },
			want: func(in []array) array {
				for len(in) > 1 && len(in[0].shape) == 1 && in[0].shape[0] == 0 {
					in = in[1:]
				}
				to := append(tensor.Shape{}, in[0].shape...)
				a := (c.axis + len(to)) % len(to)
				to[a] = 0
				for _, x := range in {
					to[a] += x.shape[a]
				}
				return build(to, func(i []int) float64 {
					from := append([]int{}, i...)
					for _, x := range in {
						if from[a] < x.shape[a] {
							return x.at(from...)
						}
						from[a] -= x.shape[a]
					}
					return math.NaN()
				})
			}})
	}
	for _, c := range []struct {
		axis   int
		shapes []tensor.Shape
	}{
		{0, []tensor.Shape{{3}}}, {0, []tensor.Shape{{}, {}, {}}}, {1, []tensor.Shape{{3, 7}, {3, 7}}}, {-1, []tensor.Shape{{3, 1}, {3, 1}, {3, 1}}}, {0, []tensor.Shape{{0, 2}, {0, 2}}},
	} {
		list = append(list, check{op: "Stack", shapes: c.shapes,
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Stack(c.axis, in...) },
			want: func(in []array) array {
				rank := len(in[0].shape) + 1
				a := (c.axis + rank) % rank
				to := append(tensor.Shape{}, in[0].shape[:a]...)
				to = append(append(to, len(in)), in[0].shape[a:]...)
				return build(to, func(i []int) float64 {
					return in[i[a]].at(append(append([]int{}, i[:a]...), i[a+1:]...)...)
				})
			}})
	}
	list = append(list, check{op: "Concat", about: "one operand twice", shapes: []tensor.Shape{{3, 7}},
		apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Concat(0, in[0], in[0]) },
		want: func(in []array) array {
			return array{tensor.Shape{6, 7}, append(append([]float64{}, in[0].data...), in[0].data...)}
		}})

	mask := func(s tensor.Shape) array {
		return build(s, func(i []int) float64 { return float64((3*sum(i) + len(i)) % 2 * -5) })
	}
	for _, w := range [][]tensor.Shape{ // the mask's shape first
		{{}, {}, {}}, {{3, 7}, {3, 7}, {3, 7}}, {{7}, {3, 1}, {}}, {{3, 1}, {7}, {3, 7}}, {{13}, {13}, {1}}, {{2, 1, 3}, {5, 1}, {1}}, {{0, 3}, {3}, {1, 3}},
	} {
		list = append(list, check{op: "Where", about: w[0].String(), shapes: w[1:],
			apply: func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
				return ops.Where(ids(p, mask(w[0]).data, w[0]...), in[0], in[1])
			},
			want: func(in []array) array {
				m := mask(w[0])
				to := must(tensor.Broadcast(w[0], must(tensor.Broadcast(w[1], w[2]))))
				return build(to, func(i []int) float64 {
					if m.at(i...) != 0 {
						return in[0].at(i...)
					}
					return in[1].at(i...)
				})
			}})
	}
	for _, w := range [][]tensor.Shape{{{}, {}}, {{3, 7}, {3, 7}}, {{7}, {3, 1}}, {{13}, {13}}, {{2, 1, 3}, {5, 1}}, {{0, 3}, {3}}} {
		list = append(list, check{op: "MaskedFill", about: w[0].String(), shapes: w[1:],
			apply: func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
				return ops.MaskedFill(in[0], ids(p, mask(w[0]).data, w[0]...), -0.3)
			},
			want: func(in []array) array {
				m := mask(w[0])
				return build(must(tensor.Broadcast(w[0], w[1])), func(i []int) float64 {
					if m.at(i...) != 0 {
						return -0.3
					}
					return in[0].at(i...)
				})
			}})
	}
	return list
}

func sum(x []int) int {
	s := 0
	for _, v := range x {
		s += v
	}
	return s
}

// TestCasts: each pair of dtypes rounds once, and the gradient comes back in the operand's.
func TestCasts(t *testing.T) {
	x := []float64{0, 1, -2.5, 1 / 3.0, 1e-8, 65519, -3e38, 1 + 0x1p-8 + 0x1p-40, math.Inf(1), math.NaN()}
	for _, from := range floats {
		for _, to := range floats {
			v := watch(newTape(t), from, x, len(x))
			y := ops.Cast(v, to)
			var want, rounded []float64
			for _, a := range x {
				want = append(want, tensor.Round(to, tensor.Round(from, a)))
			}
			equal(t, from.String()+" to "+to.String(), values(t, y), want)
			seed := laid("dense", to, x, len(x))
			g, err := y.Tape().BackwardFrom(y, seed)
			if err != nil {
				t.Fatal(err)
			}
			gx := g.Of(v.Tensor())
			for _, a := range must(seed.Float64s()) {
				rounded = append(rounded, tensor.Round(from, a))
			}
			if gx.DType() != from {
				t.Errorf("the gradient of a %v is %v", from, gx.DType())
			}
			equal(t, "gradient", must(must(y.Tape().Download(gx)).Float64s()), rounded)
		}
	}
	tape := newTape(t)
	equal(t, "of integers", values(t, ops.Cast(ids(tape, []float64{-3, 0, 7}, 3), tensor.Float16)), []float64{-3, 0, 7})
	if d := ops.Cast(ids(tape, []float64{1}, 1), tensor.Int32).DType(); d != tensor.Int32 {
		t.Errorf("int64 to int32 gave %v", d)
	}
}

// TestViewsOfIntegers: ids and masks can be reshaped, permuted, sliced and expanded.
func TestViewsOfIntegers(t *testing.T) {
	x := ids(newTape(t), []float64{0, 1, 2, 3, 4, 5}, 2, 3)
	y := ops.Reshape(ops.Permute(x, 1, 0), 6)
	equal(t, "permuted", values(t, y), []float64{0, 3, 1, 4, 2, 5})
	y = ops.Expand(ops.Unsqueeze(ops.Select(ops.Slice(x, 1, 1, 3), 0, 1), 0), 2, 2)
	equal(t, "sliced and expanded", values(t, y), []float64{4, 5, 4, 5})
	if y.WantsGrad() {
		t.Error("integers want a gradient")
	}
}

// TestMasksOfAnyLayout: a mask's strides and integer type change nothing.
func TestMasksOfAnyLayout(t *testing.T) {
	m, x := []float64{1, 0, 0, 7, 0, -1, 1, 0, 0, 1, 1, 0}, normal(3, 12)
	run := func(mask *tensor.Tensor) outcome {
		r, err := evaluate(func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.Where(p.Const(mask), in[0], ops.MaskedFill(in[1], p.Const(mask), 2))
		}, []*tensor.Tensor{laid("dense", tensor.Float32, x, 3, 4), laid("dense", tensor.Float32, x, 3, 4)}, denseSeed)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := run(laid("dense", tensor.Int64, m, 3, 4))
	for _, d := range []tensor.DType{tensor.Int32, tensor.Int64} {
		for _, l := range layouts {
			sameOutcome(t, d.String()+" "+string(l), run(laid(l, d, m, 3, 4)), want)
		}
	}
	row := repeated(tensor.Int64, m, 3, 4)
	sameOutcome(t, "expanded", run(row), run(denseCopy(row)))
}

// TestUnchosenNaN: what a mask leaves out has no influence, in either direction.
func TestUnchosenNaN(t *testing.T) {
	tape := newTape(t)
	nan := math.NaN()
	a, b := watch(tape, tensor.Float32, []float64{1, nan}, 2), watch(tape, tensor.Float32, []float64{nan, 2}, 2)
	y := ops.Where(ids(tape, []float64{1, 0}, 2), a, b)
	equal(t, "where", values(t, y), []float64{1, 2})
	g := gradients(t, y, a, b)
	equal(t, "gradient of a", g[0], []float64{1, 0})
	equal(t, "gradient of b", g[1], []float64{0, 1})
}

// TestArgumentsAreCopied: the caller may reuse the slices it gave.
func TestArgumentsAreCopied(t *testing.T) {
	axes := []int{1, 2, 0}
	x := watch(newTape(t), tensor.Float64, normal(1, 24), 2, 3, 4)
	y := ops.Permute(x, axes...)
	axes[0], axes[1], axes[2] = 0, 1, 2
	if gradients(t, ops.Mul(y, y), x); y.Err() != nil {
		t.Error(y.Err())
	}
	axes = []int{0}
	over := ops.Over(axes...)
	axes[0] = 1
	x = watch(newTape(t), tensor.Float64, normal(1, 6), 2, 3)
	if s := ops.Sum(x, over).Shape(); !s.Equal(tensor.Shape{3}) {
		t.Errorf("sum over axis 0 is %v", s)
	}
}

func TestShapeRefusals(t *testing.T) {
	testRefusals(t, []refusal{
		{"an invalid type", "Cast", tensor.ErrDType, []string{"dtype", "invalid"}, func(p *autograd.Tape) *autograd.Var { return ops.Cast(ones(p, 3), 0) }},
		{"to integers", "Cast", tensor.ErrDType, []string{"int64"}, func(p *autograd.Tape) *autograd.Var { return ops.Cast(ones(p, 3), tensor.Int64) }},
		{"sizes", "Reshape", tensor.ErrShape, []string{"shape", "(4,2)", "6"}, func(p *autograd.Tape) *autograd.Var { return ops.Reshape(ones(p, 2, 3), 4, 2) }},
		{"two unknowns", "Reshape", tensor.ErrShape, []string{"shape"}, func(p *autograd.Tape) *autograd.Var { return ops.Reshape(ones(p, 2, 3), -1, -1) }},
		{"nothing left", "Reshape", tensor.ErrShape, []string{"(-1,0)"}, func(p *autograd.Tape) *autograd.Var { return ops.Reshape(ones(p, 2, 3), -1, 0) }},
		{"a negative size", "Reshape", tensor.ErrShape, []string{"-2"}, func(p *autograd.Tape) *autograd.Var { return ops.Reshape(ones(p, 2, 3), -2, 3) }},
		{"nine axes", "Reshape", tensor.ErrRank, []string{"8"}, func(p *autograd.Tape) *autograd.Var { return ops.Reshape(ones(p, 1), 1, 1, 1, 1, 1, 1, 1, 1, 1) }},
		{"overflow", "Reshape", tensor.ErrSize, nil, func(p *autograd.Tape) *autograd.Var { return ops.Reshape(ones(p, 0), 0, math.MaxInt, math.MaxInt) }},
		{"too few axes", "Permute", tensor.ErrAxis, []string{"axes", "(0)"}, func(p *autograd.Tape) *autograd.Var { return ops.Permute(ones(p, 2, 3), 0) }},
		{"an axis twice", "Permute", tensor.ErrAxis, []string{"(1,-1)"}, func(p *autograd.Tape) *autograd.Var { return ops.Permute(ones(p, 2, 3), 1, -1) }},
		{"no such axis", "Permute", tensor.ErrAxis, []string{"2"}, func(p *autograd.Tape) *autograd.Var { return ops.Permute(ones(p, 2, 3), 0, 2) }},
		{"no such axis", "Transpose", tensor.ErrAxis, []string{"-3"}, func(p *autograd.Tape) *autograd.Var { return ops.Transpose(ones(p, 2, 3), 0, -3) }},
		{"size 3", "Squeeze", tensor.ErrShape, []string{"axis 1", "3"}, func(p *autograd.Tape) *autograd.Var { return ops.Squeeze(ones(p, 1, 3), 1) }},
		{"no such axis", "Squeeze", tensor.ErrAxis, []string{"0"}, func(p *autograd.Tape) *autograd.Var { return ops.Squeeze(ones(p), 0) }},
		{"no such axis", "Unsqueeze", tensor.ErrAxis, []string{"4"}, func(p *autograd.Tape) *autograd.Var { return ops.Unsqueeze(ones(p, 1, 3), 4) }},
		{"a ninth axis", "Unsqueeze", tensor.ErrRank, []string{"8"}, func(p *autograd.Tape) *autograd.Var { return ops.Unsqueeze(ones(p, 1, 1, 1, 1, 1, 1, 1, 1), 0) }},
		{"size 3", "Expand", tensor.ErrShape, []string{"(2,4)", "(3)"}, func(p *autograd.Tape) *autograd.Var { return ops.Expand(ones(p, 3), 2, 4) }},
		{"fewer axes", "Expand", tensor.ErrShape, []string{"(3)"}, func(p *autograd.Tape) *autograd.Var { return ops.Expand(ones(p, 1, 3), 3) }},
		{"overflow", "Expand", tensor.ErrSize, nil, func(p *autograd.Tape) *autograd.Var { return ops.Expand(ones(p, 1, 1), math.MaxInt, 2) }},
		{"past the end", "Slice", tensor.ErrIndex, []string{"[1:4]", "axis 1"}, func(p *autograd.Tape) *autograd.Var { return ops.Slice(ones(p, 2, 3), 1, 1, 4) }},
		{"negative", "Slice", tensor.ErrIndex, []string{"[-1:2]"}, func(p *autograd.Tape) *autograd.Var { return ops.Slice(ones(p, 2, 3), 1, -1, 2) }},
		{"backwards", "Slice", tensor.ErrIndex, []string{"[2:1]"}, func(p *autograd.Tape) *autograd.Var { return ops.Slice(ones(p, 2, 3), 1, 2, 1) }},
		{"no such axis", "Slice", tensor.ErrAxis, []string{"2"}, func(p *autograd.Tape) *autograd.Var { return ops.Slice(ones(p, 2, 3), 2, 0, 1) }},
		{"past the end", "Select", tensor.ErrIndex, []string{"index", "3"}, func(p *autograd.Tape) *autograd.Var { return ops.Select(ones(p, 2, 3), 1, 3) }},
		{"before the start", "Select", tensor.ErrIndex, []string{"-4"}, func(p *autograd.Tape) *autograd.Var { return ops.Select(ones(p, 2, 3), 1, -4) }},
		{"of a scalar", "Select", tensor.ErrAxis, nil, func(p *autograd.Tape) *autograd.Var { return ops.Select(ones(p), 0, 0) }},
		{"sizes", "Concat", tensor.ErrShape, []string{"operand 1", "(3,3)", "(2,4)"}, func(p *autograd.Tape) *autograd.Var { return ops.Concat(0, ones(p, 2, 4), ones(p, 3, 3)) }},
		{"ranks", "Concat", tensor.ErrShape, []string{"operand 2", "(4)"}, func(p *autograd.Tape) *autograd.Var {
			return ops.Concat(0, ones(p, 2, 4), ones(p, 1, 4), ones(p, 4))
		}},
		{"no such axis", "Concat", tensor.ErrAxis, []string{"2"}, func(p *autograd.Tape) *autograd.Var { return ops.Concat(2, ones(p, 2, 4), ones(p, 2, 4)) }},
		{"scalars", "Concat", tensor.ErrAxis, nil, func(p *autograd.Tape) *autograd.Var { return ops.Concat(0, ones(p), ones(p)) }},
		{"operand 12", "Concat", tensor.ErrShape, []string{"operand 12 "}, func(p *autograd.Tape) *autograd.Var {
			var xs []*autograd.Var
			for range 12 {
				xs = append(xs, ones(p, 2))
			}
			return ops.Concat(0, append(xs, ones(p, 1, 1))...)
		}},
		{"shapes", "Stack", tensor.ErrShape, []string{"operand 1", "(2)", "(3)"}, func(p *autograd.Tape) *autograd.Var { return ops.Stack(0, ones(p, 3), ones(p, 2)) }},
		{"no such axis", "Stack", tensor.ErrAxis, []string{"2"}, func(p *autograd.Tape) *autograd.Var { return ops.Stack(2, ones(p, 3), ones(p, 3)) }},
		{"a float condition", "Where", tensor.ErrDType, []string{"cond", "float64"}, func(p *autograd.Tape) *autograd.Var { return ops.Where(ones(p, 3), ones(p, 3), ones(p, 3)) }},
		{"no condition", "Where", tensor.ErrMissing, []string{"cond", "nil"}, func(p *autograd.Tape) *autograd.Var { return ops.Where(nil, ones(p, 3), ones(p, 3)) }},
		{"shapes", "Where", tensor.ErrShape, []string{"(2)", "(3)"}, func(p *autograd.Tape) *autograd.Var {
			return ops.Where(ids(p, []float64{1, 0}, 2), ones(p, 3), ones(p, 3))
		}},
		{"a float mask", "MaskedFill", tensor.ErrDType, []string{"mask", "float64"}, func(p *autograd.Tape) *autograd.Var { return ops.MaskedFill(ones(p, 3), ones(p, 3), 0) }},
		{"no mask", "MaskedFill", tensor.ErrMissing, []string{"mask", "nil"}, func(p *autograd.Tape) *autograd.Var { return ops.MaskedFill(ones(p, 3), nil, 0) }},
		{"no operand but a mask", "MaskedFill", tensor.ErrMissing, []string{"nil"}, func(p *autograd.Tape) *autograd.Var {
			return ops.MaskedFill(nil, ids(p, []float64{1}, 1), 0)
		}},
		{"shapes", "MaskedFill", tensor.ErrShape, []string{"(2)", "(3)"}, func(p *autograd.Tape) *autograd.Var {
			return ops.MaskedFill(ones(p, 3), ids(p, []float64{1, 0}, 2), 0)
		}},
	})
	for name, y := range map[string]*autograd.Var{"concat": ops.Concat(0), "stack": ops.Stack(0), "where": ops.Where(nil, nil, nil)} {
		if y.Err() == nil || !strings.Contains(y.Err().Error(), "none on a tape") {
			t.Errorf("%s of nothing: %v", name, y.Err())
		}
	}
}
