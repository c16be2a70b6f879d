package ops_test

import (
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

func embeddingChecks() []check {
	var list []check
	for _, s := range []struct {
		table tensor.Shape
		ids   []float64
		shape tensor.Shape
	}{
		{tensor.Shape{1, 1}, []float64{0}, tensor.Shape{1}},
		{tensor.Shape{5, 3}, []float64{2}, tensor.Shape{}},
		{tensor.Shape{5, 7}, []float64{4, 0, 4}, tensor.Shape{3}},
		{tensor.Shape{7, 13}, []float64{6, 1, 1, 0, 1, 6}, tensor.Shape{2, 3}},
		{tensor.Shape{5, 3}, nil, tensor.Shape{2, 0}},
		{tensor.Shape{0, 3}, nil, tensor.Shape{0}},
		{tensor.Shape{5, 0}, []float64{4, 1}, tensor.Shape{2}},
	} {
		list = append(list, check{op: "Embedding", about: "ids " + s.shape.String(), shapes: []tensor.Shape{s.table},
			apply: func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
				return ops.Embedding(in[0], ids(p, s.ids, s.shape...))
			},
			want: func(in []array) array {
				d := s.table[1]
				y := array{append(append(tensor.Shape{}, s.shape...), d), nil}
				for _, id := range s.ids {
					y.data = append(y.data, in[0].data[int(id)*d:int(id+1)*d]...)
				}
				return y
			}})
	}
	return list
}

// TestRepeatedIDs: a row's gradient is the sum over its uses, rounded once.
func TestRepeatedIDs(t *testing.T) {
	for _, d := range floats {
		tape := newTape(t)
		table := watch(tape, d, normal(1, 6), 3, 2)
		list := make([]float64, 700) // 700 ones do not fit a running sum in bfloat16
		for i := range 44 {
			list[i*10] = 2
		}
		g := gradients(t, ops.Embedding(table, ids(tape, list, 7, 100)), table)[0]
		equal(t, d.String(), g, []float64{656, 656, 0, 0, 44, 44})
	}
}

// TestIDsOfAnyLayout: strides and integer type of the ids change nothing.
func TestIDsOfAnyLayout(t *testing.T) {
	list := []float64{1, 0, 4, 4, 2, 3}
	run := func(x *tensor.Tensor) outcome {
		r, err := evaluate(func(p *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Embedding(in[0], p.Const(x)) },
			[]*tensor.Tensor{laid("dense", tensor.BFloat16, normal(2, 15), 5, 3)}, denseSeed)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := run(laid("dense", tensor.Int64, list, 2, 3))
	for _, d := range []tensor.DType{tensor.Int32, tensor.Int64} {
		for _, l := range layouts {
			sameOutcome(t, d.String()+" "+string(l), run(laid(l, d, list, 2, 3)), want)
		}
	}
	row := repeated(tensor.Int32, list, 2, 3)
	sameOutcome(t, "expanded", run(row), run(denseCopy(row)))
}

func TestEmbeddingRefusals(t *testing.T) {
	testRefusals(t, []refusal{
		{"an id past the end", "Embedding", tensor.ErrIndex, []string{"ids", "5"}, func(p *autograd.Tape) *autograd.Var { return ops.Embedding(ones(p, 5, 3), ids(p, []float64{0, 5}, 2)) }},
		{"a negative id", "Embedding", tensor.ErrIndex, []string{"ids", "-1"}, func(p *autograd.Tape) *autograd.Var { return ops.Embedding(ones(p, 5, 3), ids(p, []float64{-1, 0}, 2)) }},
		{"an empty table", "Embedding", tensor.ErrIndex, []string{"ids", "empty"}, func(p *autograd.Tape) *autograd.Var { return ops.Embedding(ones(p, 0, 3), ids(p, []float64{0}, 1)) }},
		{"float ids", "Embedding", tensor.ErrDType, []string{"ids is float64"}, func(p *autograd.Tape) *autograd.Var { return ops.Embedding(ones(p, 5, 3), ones(p, 2)) }},
		{"no ids", "Embedding", tensor.ErrMissing, []string{"ids is nil"}, func(p *autograd.Tape) *autograd.Var { return ops.Embedding(ones(p, 5, 3), nil) }},
		{"no table", "Embedding", tensor.ErrMissing, []string{"nil"}, func(p *autograd.Tape) *autograd.Var { return ops.Embedding(nil, ids(p, []float64{0}, 1)) }},
		{"a table of three axes", "Embedding", tensor.ErrRank, []string{"table is (5,3,1)"}, func(p *autograd.Tape) *autograd.Var {
			return ops.Embedding(ones(p, 5, 3, 1), ids(p, []float64{0}, 1))
		}},
	})
}
