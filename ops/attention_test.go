package ops_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/ops"
	"github.com/lamina-go/lamina/tensor"
)

// attended is the plain computation; seen says which key a query sees.
func attended(q, k, v array, scale float64, seen func(b, h, i, j int) bool) array {
	group := q.shape[1] / k.shape[1]
	return build(tensor.Shape{q.shape[0], q.shape[1], q.shape[2], v.shape[3]}, func(at []int) float64 {
		b, h, i, c := at[0], at[1], at[2], at[3]
		top, weights, out := math.Inf(-1), 0.0, 0.0
		logits := make([]float64, k.shape[2])
		for j := range logits {
			logits[j] = math.Inf(-1)
			if seen(b, h, i, j) {
				logits[j] = 0
				for d := range q.shape[3] {
					logits[j] += scale * q.at(b, h, i, d) * k.at(b, h/group, j, d)
				}
			}
			top = math.Max(top, logits[j])
		}
		if math.IsInf(top, -1) {
			return 0
		}
		for j, l := range logits {
			w := math.Exp(l - top)
			weights += w
			out += w * v.at(b, h/group, j, c)
		}
		return out / weights
	})
}

type attentionUse struct {
	about   string
	q, k, v tensor.Shape
	causal  bool
	mask    tensor.Shape // nil: none
	scale   *float64
}

// masked is the mask of a use: some keys of each query, and for the query 1 none.
func masked(s tensor.Shape) array {
	return build(s, func(i []int) float64 {
		if len(i) > 1 && s[len(i)-2] > 1 && i[len(i)-2] == 1 {
			return 0
		}
		return float64((sum(i)*5 + 1) % 3)
	})
}

func (u attentionUse) apply(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
	o := ops.AttentionOptions{Causal: u.causal, Scale: u.scale}
	if u.mask != nil {
		o.Mask = ids(p, masked(u.mask).data, u.mask...)
	}
	return ops.Attention(in[0], in[1], in[2], o)
}

func (u attentionUse) want(in []array) array {
	scale := 1 / math.Sqrt(float64(u.q[3]))
	if u.scale != nil {
		scale = *u.scale
	}
	var mask array
	if u.mask != nil {
		mask = masked(u.mask)
	}
	ahead := u.k[2] - u.q[2]
	return attended(in[0], in[1], in[2], scale, func(b, h, i, j int) bool {
		return (!u.causal || j <= i+ahead) && (u.mask == nil || mask.at(b, h, i, j) != 0)
	})
}

func attentionChecks() []check {
	var list []check
	scale, zero := 0.3, 0.0
	for _, u := range []attentionUse{
		{about: "one", q: tensor.Shape{1, 1, 1, 1}, k: tensor.Shape{1, 1, 1, 1}, v: tensor.Shape{1, 1, 1, 1}},
		{about: "plain", q: tensor.Shape{2, 3, 3, 5}, k: tensor.Shape{2, 3, 3, 5}, v: tensor.Shape{2, 3, 3, 2}},
		{about: "causal", causal: true, q: tensor.Shape{1, 2, 7, 3}, k: tensor.Shape{1, 2, 7, 3}, v: tensor.Shape{1, 2, 7, 3}},
		{about: "causal, more keys", causal: true, q: tensor.Shape{1, 2, 3, 3}, k: tensor.Shape{1, 2, 7, 3}, v: tensor.Shape{1, 2, 7, 1}},
		{about: "causal, more queries", causal: true, q: tensor.Shape{1, 2, 7, 3}, k: tensor.Shape{1, 2, 3, 3}, v: tensor.Shape{1, 2, 3, 3}},
		{about: "masked", mask: tensor.Shape{3, 5}, q: tensor.Shape{2, 2, 3, 3}, k: tensor.Shape{2, 2, 5, 3}, v: tensor.Shape{2, 2, 5, 3}},
		{about: "masked by keys", mask: tensor.Shape{5}, q: tensor.Shape{1, 2, 3, 3}, k: tensor.Shape{1, 2, 5, 3}, v: tensor.Shape{1, 2, 5, 3}},
		{about: "masked by batch", mask: tensor.Shape{2, 1, 1, 5}, q: tensor.Shape{2, 2, 3, 3}, k: tensor.Shape{2, 2, 5, 3}, v: tensor.Shape{2, 2, 5, 3}},
		{about: "causal and masked", causal: true, mask: tensor.Shape{1, 2, 5, 5}, q: tensor.Shape{1, 2, 5, 3}, k: tensor.Shape{1, 2, 5, 3}, v: tensor.Shape{1, 2, 5, 3}},
		{about: "grouped", q: tensor.Shape{2, 6, 3, 3}, k: tensor.Shape{2, 2, 4, 3}, v: tensor.Shape{2, 2, 4, 5}},
		{about: "grouped, causal", causal: true, q: tensor.Shape{1, 4, 3, 2}, k: tensor.Shape{1, 1, 3, 2}, v: tensor.Shape{1, 1, 3, 2}},
		{about: "scaled", scale: &scale, q: tensor.Shape{1, 2, 3, 5}, k: tensor.Shape{1, 2, 4, 5}, v: tensor.Shape{1, 2, 4, 3}},
		{about: "scaled by 0", scale: &zero, q: tensor.Shape{1, 2, 3, 5}, k: tensor.Shape{1, 2, 4, 5}, v: tensor.Shape{1, 2, 4, 3}},
		{about: "no query", causal: true, q: tensor.Shape{1, 2, 0, 5}, k: tensor.Shape{1, 2, 4, 5}, v: tensor.Shape{1, 2, 4, 3}},
		{about: "no key", q: tensor.Shape{1, 2, 3, 5}, k: tensor.Shape{1, 1, 0, 5}, v: tensor.Shape{1, 1, 0, 3}},
		{about: "no batch", q: tensor.Shape{0, 2, 3, 5}, k: tensor.Shape{0, 1, 3, 5}, v: tensor.Shape{0, 1, 3, 5}},
	} {
		list = append(list, check{op: "Attention", about: u.about, shapes: []tensor.Shape{u.q, u.k, u.v}, apply: u.apply, want: u.want})
	}
	return list
}

func attend(t *testing.T, d tensor.DType, q, k, v tensor.Shape, apply func(p *autograd.Tape, in []*autograd.Var) *autograd.Var) outcome {
	t.Helper()
	r, err := evaluate(apply, []*tensor.Tensor{laid("dense", d, normal(1, q.Len()), q...), laid("dense", d, normal(2, k.Len()), k...), laid("dense", d, normal(3, v.Len()), v...)}, denseSeed)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// closeOutcome holds results against others that were rounded elsewhere on the way.
func closeOutcome(t *testing.T, what string, d tensor.DType, factor float64, got, want outcome) {
	t.Helper()
	tolerance := map[tensor.DType]float64{tensor.Float64: 1e-13, tensor.Float32: 1e-5, tensor.Float16: 0x1p-9, tensor.BFloat16: 0x1p-6}[d] * factor
	if len(got.grads) != len(want.grads) {
		t.Errorf("%s: %d gradients, want %d", what, len(got.grads), len(want.grads))
		return
	}
	pairs := [][2]*tensor.Tensor{{got.out, want.out}}
	for i := range got.grads {
		pairs = append(pairs, [2]*tensor.Tensor{got.grads[i], want.grads[i]})
	}
	for k, p := range pairs {
		x, err := p[0].Float64s()
		if err != nil {
			t.Fatal(err)
		}
		y, err := p[1].Float64s()
		if err != nil {
			t.Fatal(err)
		}
		if len(x) != len(y) {
			t.Errorf("%s: result %d has %d elements, want %d", what, k, len(x), len(y))
			return
		}
		for i := range x {
			if !(math.Abs(x[i]-y[i]) <= tolerance*(1+math.Abs(y[i]))) {
				t.Errorf("%s: result %d (0 is the value, then the gradients), element %d is %v, want %v", what, k, i, x[i], y[i])
				return
			}
		}
	}
}

// TestCausalIsAMask: causal attention, which is one kernel, is the mask that says
// the same, which is made of small ones; also across blocks of queries and of
// keys, with grouped heads, a negative scale and queries that see nothing.
func TestCausalIsAMask(t *testing.T) {
	scale, far := -0.6, -100.0 // of logits that exp cannot take as they are
	for _, d := range floats {
		for i, n := range [][2]int{{1, 1}, {7, 7}, {3, 7}, {7, 3}, {65, 65}, {130, 64}, {64, 131}, {70, 450}} {
			q, k, v := tensor.Shape{2, 4, n[0], 4}, tensor.Shape{2, 2, n[1], 4}, tensor.Shape{2, 2, n[1], 4 + i}
			if n[1] > 100 && d.IsHalf() {
				continue // what 16 bits round of so many weights is beyond the tolerance
			}
			o := ops.AttentionOptions{}
			if i%2 == 1 {
				o.Scale = &scale
			}
			factor := 1.0
			if i == 3 {
				o.Scale, factor = &far, 1000 // what rounding does to such logits
			}
			lower := build(tensor.Shape{n[0], n[1]}, func(i []int) float64 {
				if i[1] <= i[0]+n[1]-n[0] {
					return 1
				}
				return 0
			})
			run := func(causal, mask bool) outcome {
				return attend(t, d, q, k, v, func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
					o := o
					o.Causal = causal
					if mask {
						o.Mask = ids(p, lower.data, lower.shape...)
					}
					return ops.Attention(in[0], in[1], in[2], o)
				})
			}
			causal := run(true, false)
			closeOutcome(t, fmt.Sprintf("%v %v", d, n), d, factor, causal, run(false, true))
			closeOutcome(t, fmt.Sprintf("%v %v, both", d, n), d, factor, causal, run(true, true))
		}
	}
}

// TestGroupedHeads: sharing key heads is repeating them.
func TestGroupedHeads(t *testing.T) {
	repeat := func(x *autograd.Var) *autograd.Var { // (B,2,S,W) to (B,6,S,W)
		s := x.Shape()
		return ops.Reshape(ops.Expand(ops.Unsqueeze(x, 2), s[0], 2, 3, s[2], s[3]), s[0], 6, s[2], s[3])
	}
	q, k, v := tensor.Shape{2, 6, 3, 5}, tensor.Shape{2, 2, 7, 5}, tensor.Shape{2, 2, 7, 3}
	for _, d := range floats {
		for _, o := range []ops.AttentionOptions{{}, {Causal: true}} {
			shared := attend(t, d, q, k, v, func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var { return ops.Attention(in[0], in[1], in[2], o) })
			copied := attend(t, d, q, k, v, func(_ *autograd.Tape, in []*autograd.Var) *autograd.Var {
				return ops.Attention(in[0], repeat(in[1]), repeat(in[2]), o)
			})
			if err := same(shared.out, copied.out); err != nil {
				t.Errorf("%v: result: %v", d, err)
			}
			for i := range shared.grads { // the copies' gradients are rounded before they are summed
				tolerance := map[tensor.DType]float64{tensor.Float64: 1e-14, tensor.Float32: 1e-6, tensor.Float16: 1e-2, tensor.BFloat16: 5e-2}[d]
				close(t, d.String(), must(shared.grads[i].Float64s()), must(copied.grads[i].Float64s()), tolerance)
			}
		}
	}
}

// TestQueriesWithoutKeys: a query that sees nothing gives zeros, gets and gives no gradient.
func TestQueriesWithoutKeys(t *testing.T) {
	for _, d := range floats {
		s := tensor.Shape{1, 1, 3, 2}
		r := attend(t, d, s, s, s, func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.Attention(in[0], in[1], in[2], ops.AttentionOptions{Mask: ids(p, []float64{1, 0, 0, 0, 0, 0, 1, 1, 0}, 3, 3)})
		})
		out, dq := must(r.out.Float64s()), must(r.grads[0].Float64s())
		equal(t, "result", out[2:4], []float64{0, 0})
		equal(t, "gradient", dq[2:4], []float64{0, 0})
		for i, g := range r.grads {
			for _, x := range must(g.Float64s()) {
				if math.IsNaN(x) || math.IsInf(x, 0) {
					t.Errorf("%v: gradient %d is %v", d, i, x)
				}
			}
		}
		equal(t, "a key that none sees", must(r.grads[1].Float64s())[4:], []float64{0, 0})
		equal(t, "a value that none sees", must(r.grads[2].Float64s())[4:], []float64{0, 0})
		none := attend(t, d, s, s, s, func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.Attention(in[0], in[1], in[2], ops.AttentionOptions{Mask: ids(p, []float64{0}, 1)})
		})
		equal(t, "all masked", must(none.out.Float64s()), make([]float64, 6))
		for _, g := range none.grads {
			equal(t, "all masked", must(g.Float64s()), make([]float64, 6))
		}
	}
}

// TestAttentionFarOut: logits of +-1e4 neither overflow nor mix.
func TestAttentionFarOut(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		tape := newTape(t)
		q := watch(tape, d, []float64{100, -100}, 1, 1, 2, 1)
		k, v := watch(tape, d, []float64{100, -100}, 1, 1, 2, 1), watch(tape, d, []float64{3, 5}, 1, 1, 2, 1)
		y := ops.Attention(q, k, v, ops.AttentionOptions{})
		equal(t, "result", values(t, y), []float64{3, 5})
		g := gradients(t, y, q, k, v)
		equal(t, "of q", g[0], []float64{0, 0})
		equal(t, "of k", g[1], []float64{0, 0})
		equal(t, "of v", g[2], []float64{1, 1})
	}
}

// TestMaskOfAnyLayout: a mask's strides and integer type change nothing.
func TestMaskOfAnyLayout(t *testing.T) {
	q, k := tensor.Shape{1, 2, 3, 4}, tensor.Shape{1, 2, 5, 4}
	m := masked(tensor.Shape{3, 5})
	run := func(mask *tensor.Tensor) outcome {
		return attend(t, tensor.Float32, q, k, k, func(p *autograd.Tape, in []*autograd.Var) *autograd.Var {
			return ops.Attention(in[0], in[1], in[2], ops.AttentionOptions{Mask: p.Const(mask)})
		})
	}
	want := run(laid("dense", tensor.Int64, m.data, 3, 5))
	for _, d := range []tensor.DType{tensor.Int32, tensor.Int64} {
		for _, l := range layouts {
			sameOutcome(t, d.String()+" "+string(l), run(laid(l, d, m.data, 3, 5)), want)
		}
	}
	row := repeated(tensor.Int64, m.data, 3, 5)
	sameOutcome(t, "expanded", run(row), run(denseCopy(row)))
}

func TestAttentionRefusals(t *testing.T) {
	call := func(p *autograd.Tape, q, k, v tensor.Shape, o ops.AttentionOptions) *autograd.Var {
		return ops.Attention(ones(p, q...), ones(p, k...), ones(p, v...), o)
	}
	s := tensor.Shape{2, 4, 3, 5}
	use := func(q, k, v tensor.Shape) func(p *autograd.Tape) *autograd.Var {
		return func(p *autograd.Tape) *autograd.Var { return call(p, q, k, v, ops.AttentionOptions{}) }
	}
	list := []refusal{
		{"three axes", "Attention", tensor.ErrRank, []string{"q is (4,3,5)"}, use(tensor.Shape{4, 3, 5}, s, s)},
		{"three axes", "Attention", tensor.ErrRank, []string{"v is (4,3,5)"}, use(s, s, tensor.Shape{4, 3, 5})},
		{"batch", "Attention", tensor.ErrShape, []string{"k is (1,4,3,5)"}, use(s, tensor.Shape{1, 4, 3, 5}, s)},
		{"width", "Attention", tensor.ErrShape, []string{"k is (2,4,3,6)"}, use(s, tensor.Shape{2, 4, 3, 6}, s)},
		{"heads", "Attention", tensor.ErrShape, []string{"k is (2,3,3,5)"}, use(s, tensor.Shape{2, 3, 3, 5}, tensor.Shape{2, 3, 3, 5})},
		{"more key heads", "Attention", tensor.ErrShape, []string{"k is (2,8,3,5)"}, use(s, tensor.Shape{2, 8, 3, 5}, tensor.Shape{2, 8, 3, 5})},
		{"no key heads", "Attention", tensor.ErrShape, []string{"k is (2,0,3,5)"}, use(s, tensor.Shape{2, 0, 3, 5}, tensor.Shape{2, 0, 3, 5})},
		{"length", "Attention", tensor.ErrShape, []string{"v is (2,4,4,5)"}, use(s, s, tensor.Shape{2, 4, 4, 5})},
		{"mask's shape", "Attention", tensor.ErrShape, []string{"mask is (2)", "(2,4,3,3)"}, func(p *autograd.Tape) *autograd.Var {
			return call(p, s, s, s, ops.AttentionOptions{Mask: ids(p, make([]float64, 2), 2)})
		}},
		{"mask's axes", "Attention", tensor.ErrShape, []string{"mask is (1,1,1,1,3)"}, func(p *autograd.Tape) *autograd.Var {
			return call(p, s, s, s, ops.AttentionOptions{Mask: ids(p, make([]float64, 3), 1, 1, 1, 1, 3)})
		}},
		{"a float mask", "Attention", tensor.ErrDType, []string{"mask is float64"}, func(p *autograd.Tape) *autograd.Var {
			return call(p, s, s, s, ops.AttentionOptions{Mask: ones(p, 3)})
		}},
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		list = append(list, refusal{"scale", "Attention", tensor.ErrValue, []string{"scale"}, func(p *autograd.Tape) *autograd.Var {
			return call(p, s, s, s, ops.AttentionOptions{Scale: &x})
		}})
	}
	testRefusals(t, list)
}
