package ops_test

import (
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// product is the plain matrix product of at least two axes each, with broadcasting.
func product(a, b array) array {
	ra, rb := len(a.shape), len(b.shape)
	to := must(tensor.Broadcast(a.shape[:ra-2], b.shape[:rb-2]))
	to = append(to, a.shape[ra-2], b.shape[rb-1])
	return build(to, func(i []int) float64 {
		s := 0.0
		n := len(i)
		for k := range a.shape[ra-1] {
			x, y := append([]int{}, i...), append([]int{}, i...)
			x[n-1], y[n-2] = k, k
			s += a.at(x...) * b.at(y...)
		}
		return s
	})
}

func matmulChecks() []check {
	var list []check
	for _, s := range [][]tensor.Shape{
		{{1, 1}, {1, 1}}, {{3, 7}, {7, 13}}, {{13, 1}, {1, 3}}, {{1, 13}, {13, 1}}, {{2, 3, 5}, {2, 5, 2}}, {{2, 3, 5}, {5, 2}}, {{3, 5}, {2, 5, 2}}, {{3, 1, 2, 3}, {1, 2, 3, 1}}, {{1, 3, 5}, {2, 5, 3}},
		{{3, 0}, {0, 2}}, {{0, 3}, {3, 2}}, {{2, 3}, {3, 0}}, {{0, 3, 2}, {2, 2}},
	} {
		list = append(list, check{op: "MatMul", shapes: s,
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.MatMul(in[0], in[1]) },
			want:  func(in []array) array { return product(in[0], in[1]) }})
	}
	for _, s := range []struct{ a, b, as, bs, out tensor.Shape }{ // vectors, as matrices
		{tensor.Shape{7}, tensor.Shape{7}, tensor.Shape{1, 7}, tensor.Shape{7, 1}, tensor.Shape{}},
		{tensor.Shape{7}, tensor.Shape{7, 3}, tensor.Shape{1, 7}, tensor.Shape{7, 3}, tensor.Shape{3}},
		{tensor.Shape{3, 7}, tensor.Shape{7}, tensor.Shape{3, 7}, tensor.Shape{7, 1}, tensor.Shape{3}},
		{tensor.Shape{5}, tensor.Shape{2, 5, 3}, tensor.Shape{1, 5}, tensor.Shape{2, 5, 3}, tensor.Shape{2, 3}},
		{tensor.Shape{2, 3, 5}, tensor.Shape{5}, tensor.Shape{2, 3, 5}, tensor.Shape{5, 1}, tensor.Shape{2, 3}},
	} {
		list = append(list, check{op: "MatMul", about: "vectors", shapes: []tensor.Shape{s.a, s.b},
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.MatMul(in[0], in[1]) },
			want: func(in []array) array {
				return array{s.out, product(array{s.as, in[0].data}, array{s.bs, in[1].data}).data}
			}})
	}
	list = append(list, check{op: "MatMul", about: "a matrix and its transpose", several: true, shapes: []tensor.Shape{{3, 7}},
		apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.MatMul(in[0], ops.Transpose(in[0], 0, 1))
		},
		want: func(in []array) array {
			return product(in[0], build(tensor.Shape{7, 3}, func(i []int) float64 { return in[0].at(i[1], i[0]) }))
		}})
	for _, s := range [][]tensor.Shape{ // x, weight and perhaps a bias
		{{3, 7}, {13, 7}, {13}}, {{3, 7}, {13, 7}}, {{7}, {3, 7}, {3}}, {{3, 7}, {13, 7}, {1}}, {{2, 3, 5}, {4, 5}, {}}, {{2, 3, 5}, {1, 5}, {1}}, {{2, 1, 3, 1}, {7, 1}}, {{1, 1}, {1, 1}, {1}}, {{0, 3}, {2, 3}, {2}}, {{2, 0}, {3, 0}, {3}},
	} {
		c := check{op: "Linear", shapes: s, optional: []int{2},
			apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
				if len(in) == 2 {
					return ops.Linear(in[0], in[1], nil)
				}
				return ops.Linear(in[0], in[1], in[2])
			},
			want: func(in []array) array {
				x, w := in[0], in[1]
				to := append(append(tensor.Shape{}, x.shape[:len(x.shape)-1]...), w.shape[0])
				return build(to, func(i []int) float64 {
					y := 0.0
					if len(in) == 3 {
						y = in[2].at(i...)
					}
					last := len(i) - 1
					at := append([]int{}, i...)
					for k := range w.shape[1] {
						at[last] = k
						y += x.at(at...) * w.at(i[last], k)
					}
					return y
				})
			}}
		list = append(list, c)
	}
	list = append(list, check{op: "Linear", about: "a weight of one axis", shapes: []tensor.Shape{{3, 2, 7}, {7}, {}}, optional: []int{2},
		apply: func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Linear(in[0], in[1], in[2]) },
		want: func(in []array) array {
			return build(tensor.Shape{3, 2}, func(i []int) float64 {
				y := in[2].at(i...)
				for k := range 7 {
					y += in[0].at(i[0], i[1], k) * in[1].at(k)
				}
				return y
			})
		}})
	return list
}

// TestTiedWeights: a tensor that is used as an embedding and as a head is one
// leaf, whose gradient is the sum of both uses.
func TestTiedWeights(t *testing.T) {
	for _, d := range floats {
		table, other := laid("dense", d, normal(1, 15), 5, 3), laid("dense", d, normal(1, 15), 5, 3)
		run := func(head *tensor.Tensor) (a, b []float64, n int) {
			tape := newTape(t)
			x := ops.Embedding(tape.Watch(table), ids(tape, []float64{4, 0, 4}, 3))
			loss := ops.CrossEntropy(ops.Linear(x, tape.Watch(head), nil), ids(tape, []float64{1, 2, 4}, 3), ops.SumOfAll, ops.IgnoreIndex)
			g, err := tape.Backward(loss)
			if err != nil {
				t.Fatal(err)
			}
			down := func(x *tensor.Tensor) []float64 { return must(must(tape.Download(g.Of(x))).Float64s()) }
			return down(table), down(head), g.Len()
		}
		tied, _, n := run(table)
		if n != 1 {
			t.Errorf("%d gradients, want 1", n)
		}
		a, b, n := run(other)
		if n != 2 {
			t.Errorf("%d gradients, want 2", n)
		}
		for i := range a {
			a[i] += b[i]
		}
		if err := near(laid("dense", d, tied, 5, 3), array{tensor.Shape{5, 3}, a}, 4*largest(a)); err != nil {
			t.Errorf("%v: %v", d, err)
		}
	}
}

func TestMatMulRefusals(t *testing.T) {
	testRefusals(t, []refusal{
		{"inner sizes", "MatMul", tensor.ErrShape, []string{"(2,3)", "(4,5)", "inner"}, func(p *autograd.Tape) *autograd.Var { return ops.MatMul(ones(p, 2, 3), ones(p, 4, 5)) }},
		{"inner sizes of vectors", "MatMul", tensor.ErrShape, []string{"inner"}, func(p *autograd.Tape) *autograd.Var { return ops.MatMul(ones(p, 3), ones(p, 4)) }},
		{"leading axes", "MatMul", tensor.ErrShape, []string{"(2)", "(3)"}, func(p *autograd.Tape) *autograd.Var { return ops.MatMul(ones(p, 2, 3, 4), ones(p, 3, 4, 5)) }},
		{"a scalar", "MatMul", tensor.ErrRank, []string{"()"}, func(p *autograd.Tape) *autograd.Var { return ops.MatMul(ones(p), ones(p, 4, 5)) }},
		{"inner sizes", "Linear", tensor.ErrShape, []string{"x is (2,3)", "(...,4)"}, func(p *autograd.Tape) *autograd.Var { return ops.Linear(ones(p, 2, 3), ones(p, 5, 4), nil) }},
		{"a scalar", "Linear", tensor.ErrShape, []string{"x is ()"}, func(p *autograd.Tape) *autograd.Var { return ops.Linear(ones(p), ones(p, 5, 4), nil) }},
		{"weight of three axes", "Linear", tensor.ErrRank, []string{"weight is (5,4,3)"}, func(p *autograd.Tape) *autograd.Var { return ops.Linear(ones(p, 3), ones(p, 5, 4, 3), nil) }},
		{"bias", "Linear", tensor.ErrShape, []string{"bias is (4)", "(5)"}, func(p *autograd.Tape) *autograd.Var { return ops.Linear(ones(p, 2, 4), ones(p, 5, 4), ones(p, 4)) }},
		{"bias of a row", "Linear", tensor.ErrShape, []string{"bias is (1,5)"}, func(p *autograd.Tape) *autograd.Var {
			return ops.Linear(ones(p, 2, 4), ones(p, 5, 4), ones(p, 1, 5))
		}},
		{"bias that would add axes", "Linear", tensor.ErrShape, []string{"bias is (5,1)"}, func(p *autograd.Tape) *autograd.Var { return ops.Linear(ones(p, 3, 4), ones(p, 4), ones(p, 5, 1)) }},
		{"bias of another type", "Linear", tensor.ErrDType, []string{"bias", "float32"}, func(p *autograd.Tape) *autograd.Var {
			return ops.Linear(ones(p, 2, 4), ones(p, 5, 4), watch(p, tensor.Float32, make([]float64, 5), 5))
		}},
	})
}
