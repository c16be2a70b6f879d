package nn_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/autograd/gradcheck"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

var residuals = []nn.Residual{nn.PreNorm, nn.Block, nn.Full}

func tiny(r nn.Residual, d tensor.DType) nn.Config {
	return nn.Config{Vocab: 11, Layers: 3, Dim: 8, Heads: 2, KVHeads: 1, Hidden: 12, Residual: r, BlockSize: 4, DType: d}
}

func model(t testing.TB, c nn.Config, seed uint64) *nn.Transformer {
	t.Helper()
	m, err := nn.NewTransformer(c, seed)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tokens are ids and, shifted by one, targets.
func tokens(tape *autograd.Tape, vocab, b, n int) (ids, targets *autograd.Var) {
	x, y := make([]int64, b*n), make([]int64, b*n)
	for i := range x {
		x[i], y[i] = int64(random.Source{Seed: 3}.Intn(uint64(i), vocab)), int64(random.Source{Seed: 3}.Intn(uint64(i+1), vocab))
	}
	return tape.Const(must(tensor.FromSlice(x, b, n))), tape.Const(must(tensor.FromSlice(y, b, n)))
}

func loss(t testing.TB, m *nn.Transformer, b, n int) float64 {
	t.Helper()
	tape := newTape(t)
	ids, targets := tokens(tape, m.Config.Vocab, b, n)
	x, err := m.Loss(tape, ids, targets).Item()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestInitialValues(t *testing.T) {
	for _, r := range residuals {
		m := model(t, nn.Config{Vocab: 64, Layers: 2, Dim: 32, Heads: 4, Residual: r, BlockSize: 2}, 1)
		again, other := model(t, m.Config, 1), model(t, m.Config, 2)
		names := map[string]bool{}
		for i, p := range m.Parameters() {
			if names[p.Name] || p.Name == "" {
				t.Errorf("%q is no name, or twice", p.Name)
			}
			names[p.Name] = true
			x := must(p.Value.Float64s())
			if !slices.Equal(x, must(again.Parameters()[i].Value.Float64s())) {
				t.Errorf("%s: other values from the same seed", p.Name)
			}
			matrix := p.Value.Rank() == 2
			if p.Decay != matrix {
				t.Errorf("%s: decay is %v", p.Name, p.Decay)
			}
			if matrix == slices.Equal(x, must(other.Parameters()[i].Value.Float64s())) {
				t.Errorf("%s: a matrix %v, and the same values from another seed or not", p.Name, matrix)
			}
			var want float64
			switch {
			case strings.HasSuffix(p.Name, ".query"):
			case !matrix:
				want = 1
			default:
				var square float64
				for _, v := range x {
					square += v * v
				}
				dev, is := math.Sqrt(square/float64(len(x))), 0.02
				if strings.HasSuffix(p.Name, ".o") || strings.HasSuffix(p.Name, ".down") {
					is = 0.02 / math.Sqrt(4)
				}
				if math.Abs(dev/is-1) > 0.1 {
					t.Errorf("%s: deviation %v, want %v", p.Name, dev, is)
				}
				continue
			}
			for _, v := range x {
				if v != want {
					t.Fatalf("%s: %v, want %v", p.Name, v, want)
				}
			}
		}
		queries := 0
		for n := range names {
			if strings.HasSuffix(n, ".query") {
				queries++
			}
		}
		if want := map[nn.Residual]int{nn.PreNorm: 0, nn.Block: 5, nn.Full: 5}[r]; queries != want {
			t.Errorf("%s: %d queries, want %d", r, queries, want)
		}
	}
}

// TestFirstLoss: with queries of zeros a model with attention over depth is the
// prenorm model up to eps, and its reads are uniform.
func TestFirstLoss(t *testing.T) {
	c := nn.Config{Vocab: 64, Layers: 6, Dim: 32, Heads: 4, BlockSize: 4, Eps: 1e-8}
	var first float64
	for i, r := range residuals {
		c.Residual = r
		m := model(t, c, 5)
		x := loss(t, m, 2, 16)
		if i == 0 {
			first = x
			if math.Abs(x-math.Log(64)) > 0.2 {
				t.Errorf("the first loss is %v, want about %v", x, math.Log(64))
			}
		}
		if math.Abs(x-first) > 1e-3 {
			t.Errorf("%s: the first loss is %v, that of prenorm %v", r, x, first)
		}
		tape := newTape(t)
		ids, _ := tokens(tape, 64, 2, 16)
		weights := m.Weights(tape, ids)
		if want := map[nn.Residual]int{nn.PreNorm: 0, nn.Block: 13, nn.Full: 13}[r]; len(weights) != want {
			t.Errorf("%s: weights of %d reads, want %d", r, len(weights), want)
		}
		for k, w := range weights {
			sources := map[nn.Residual]int{nn.Block: 1 + (k+3)/4, nn.Full: k + 1}[r]
			if !w.Shape().Equal(tensor.Shape{2, 16, sources}) {
				t.Errorf("%s: the weights of read %d are %v, want %d sources", r, k, w.Shape(), sources)
			}
			for _, x := range read(t, w) {
				if math.Abs(x-1/float64(sources)) > 1e-6 {
					t.Fatalf("%s: a weight of %v of %d sources", r, x, sources)
				}
			}
		}
	}
}

// TestModelGradients: every parameter has a gradient of its shape and dtype, one
// for the embedding that is also the head, and they agree with differences.
func TestModelGradients(t *testing.T) {
	for _, r := range residuals {
		m := model(t, tiny(r, tensor.Float64), 7)
		params := m.Parameters()
		var in []*tensor.Tensor
		for i, p := range params { // away from the start, where queries are 0 and gains 1
			x := must(p.Value.Float64s())
			for k, v := range normal(uint64(i), len(x)) {
				x[k] += 0.3 * v
			}
			in = append(in, must(tensor.FromFloat64s(tensor.Float64, x, p.Value.Shape()...)))
			p.Value = in[i]
		}
		tape := newTape(t)
		ids, targets := tokens(tape, m.Config.Vocab, 2, 5)
		g, err := tape.Backward(m.Loss(tape, ids, targets))
		if err != nil {
			t.Fatal(err)
		}
		if g.Len() != len(params) {
			t.Errorf("%s: %d gradients of %d parameters", r, g.Len(), len(params))
		}
		for _, p := range params {
			x := g.Of(p.Value)
			if x == nil || !x.Shape().Equal(p.Value.Shape()) || x.DType() != p.Value.DType() {
				t.Errorf("%s: the gradient of %s is %v", r, p.Name, x)
				continue
			}
			if all := must(must(tape.Download(x)).Float64s()); slices.Max(all) == 0 && slices.Min(all) == 0 && !strings.HasPrefix(p.Name, "layers.0.attention.read") {
				t.Errorf("%s: the gradient of %s is 0", r, p.Name) // the very first read has one source
			}
		}
		report, err := gradcheck.Check(dev, func(tape *autograd.Tape, in []*autograd.Var) *autograd.Var {
			for i, p := range params {
				p.Value = in[i].Tensor()
			}
			ids, targets := tokens(tape, m.Config.Vocab, 2, 5)
			return m.Loss(tape, ids, targets)
		}, in, gradcheck.Options{Directions: 10, Tolerance: 1e-9, Order: 4, Step: 4e-5})
		if err != nil || report.Failed > 0 {
			t.Errorf("%s: %v, %v", r, report, err)
		}
	}
}

// TestSharedKeyHeads: a model whose query heads share key heads is the model
// with those key heads repeated.
func TestSharedKeyHeads(t *testing.T) {
	c := nn.Config{Vocab: 11, Layers: 2, Dim: 12, Heads: 6, KVHeads: 2, Hidden: 16, Residual: nn.Block, BlockSize: 3, DType: tensor.Float64}
	shared := model(t, c, 1)
	c.KVHeads = 6
	wide := model(t, c, 1)
	for i, l := range shared.Layers {
		for _, p := range []struct{ from, to *nn.Parameter }{{l.K, wide.Layers[i].K}, {l.V, wide.Layers[i].V}} {
			if !p.from.Value.Shape().Equal(tensor.Shape{4, 12}) {
				t.Fatalf("%s is %v", p.from.Name, p.from.Value)
			}
			x := must(p.from.Value.Float64s())
			var y []float64
			for head := range 6 {
				y = append(y, x[head/3*24:head/3*24+24]...)
			}
			p.to.Value = must(tensor.FromFloat64s(tensor.Float64, y, 12, 12))
		}
	}
	if a, b := loss(t, shared, 2, 7), loss(t, wide, 2, 7); math.Abs(a-b) > 1e-13 {
		t.Errorf("losses %v and %v", a, b)
	}
}

// TestCausality: a later token changes no earlier logit, to the bit, and does change its own.
func TestCausality(t *testing.T) {
	for _, r := range residuals {
		m := model(t, tiny(r, tensor.Float32), 7)
		run := func(last int64) []float64 {
			tape := newTape(t)
			return read(t, m.Logits(tape, tape.Const(must(tensor.FromSlice([]int64{1, 5, 2, 9, last}, 1, 5)))))
		}
		a, b := run(3), run(4)
		if !slices.Equal(a[:44], b[:44]) || slices.Equal(a[44:], b[44:]) {
			t.Errorf("%s: logits %v and %v", r, a, b)
		}
	}
}

func TestModelDTypes(t *testing.T) {
	for _, r := range residuals {
		want := loss(t, model(t, tiny(r, tensor.Float32), 3), 2, 9)
		for _, d := range floats {
			m := model(t, tiny(r, d), 3)
			for _, p := range m.Parameters() {
				if p.Value.DType() != d {
					t.Errorf("%s is %v, want %v", p.Name, p.Value.DType(), d)
				}
			}
			x := loss(t, m, 2, 9)
			if tolerance := map[tensor.DType]float64{tensor.Float64: 1e-6, tensor.Float16: 2e-3, tensor.BFloat16: 2e-2}[d]; !(math.Abs(x-want) <= tolerance) {
				t.Errorf("%s in %v: the loss is %v, in float32 %v", r, d, x, want)
			}
		}
	}
	if d := model(t, nn.Config{Vocab: 4, Layers: 1, Dim: 4, Heads: 1, Residual: nn.PreNorm}, 1).Embed.Value.DType(); d != tensor.Float32 {
		t.Errorf("the dtype that nobody asked for is %v", d)
	}
}

func TestConfigRefusals(t *testing.T) {
	good := nn.Config{Vocab: 11, Layers: 2, Dim: 8, Heads: 2, Residual: nn.Block, BlockSize: 2}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		arg    string
		change func(*nn.Config)
	}{
		{"residual", func(c *nn.Config) { c.Residual = "" }},
		{"vocab", func(c *nn.Config) { c.Vocab = 0 }},
		{"layers", func(c *nn.Config) { c.Layers = 0 }},
		{"layers", func(c *nn.Config) { c.Layers = -1 }},
		{"dim", func(c *nn.Config) { c.Dim = 0 }},
		{"heads", func(c *nn.Config) { c.Heads = 0 }},
		{"kv heads", func(c *nn.Config) { c.KVHeads = -1 }},
		{"hidden", func(c *nn.Config) { c.Hidden = -8 }},
		{"block size", func(c *nn.Config) { c.BlockSize = 0 }},
		{"dim", func(c *nn.Config) { c.Dim = 9 }},
		{"dim / heads", func(c *nn.Config) { c.Heads = 8 }},
		{"heads", func(c *nn.Config) { c.Heads, c.KVHeads = 4, 3 }},
		{"sources", func(c *nn.Config) { c.Layers, c.BlockSize = 127, 2 }},
		{"sources", func(c *nn.Config) { c.Layers, c.Residual = 64, nn.Full }},
		{"eps", func(c *nn.Config) { c.Eps = -1 }},
		{"eps", func(c *nn.Config) { c.Eps = math.NaN() }},
		{"rope base", func(c *nn.Config) { c.RopeBase = -1 }},
		{"rope base", func(c *nn.Config) { c.RopeBase = math.Inf(1) }},
		{"dtype", func(c *nn.Config) { c.DType = tensor.Int32 }},
	} {
		bad := good
		c.change(&bad)
		var arg *tensor.ArgError
		if err := bad.Check(); !errors.Is(err, tensor.ErrValue) || !errors.As(err, &arg) || !strings.Contains(arg.Arg, c.arg) {
			t.Errorf("%s: %v", c.arg, err)
		}
		if m, err := nn.NewTransformer(bad, 1); err == nil || m != nil {
			t.Errorf("%s: a model in spite of it", c.arg)
		}
	}
	for _, c := range []nn.Config{ // 63 layers are 126 sublayers: with the embedding 127 sources
		{Vocab: 2, Layers: 63, Dim: 2, Heads: 1, Residual: nn.Full}, {Vocab: 2, Layers: 500, Dim: 2, Heads: 1, Residual: nn.Block, BlockSize: 8},
	} {
		if err := c.Check(); err != nil {
			t.Error(err)
		}
	}
	huge := nn.Config{Vocab: math.MaxInt / 2, Layers: 1, Dim: 8, Heads: 2, Hidden: 8, Residual: nn.PreNorm}
	if _, err := nn.NewTransformer(huge, 1); !errors.Is(err, tensor.ErrSize) {
		t.Errorf("a huge vocabulary: %v", err)
	}
}

func TestModelRefusals(t *testing.T) {
	for _, r := range residuals {
		m := model(t, tiny(r, tensor.Float32), 1)
		for _, c := range []struct {
			what string
			kind error
			ids  func(tape *autograd.Tape) *autograd.Var
		}{
			{"an id past the vocabulary", tensor.ErrIndex, func(p *autograd.Tape) *autograd.Var { return p.Const(must(tensor.FromSlice([]int64{0, 11}, 1, 2))) }},
			{"one axis", tensor.ErrRank, func(p *autograd.Tape) *autograd.Var { return p.Const(must(tensor.FromSlice([]int64{0, 1}, 2))) }},
			{"no integers", tensor.ErrDType, func(p *autograd.Tape) *autograd.Var { return p.Const(must(tensor.FromSlice([]float32{0, 1}, 1, 2))) }},
			{"nil", tensor.ErrMissing, func(p *autograd.Tape) *autograd.Var { return nil }},
			{"another tape", autograd.ErrOtherTape, func(*autograd.Tape) *autograd.Var {
				return newTape(t).Const(must(tensor.FromSlice([]int64{0, 1}, 1, 2)))
			}},
		} {
			tape := newTape(t)
			m.Logits(tape, c.ids(tape))
			if err := tape.Err(); !errors.Is(err, c.kind) {
				t.Errorf("%s, %s: %v", r, c.what, err)
			} else if c.kind != autograd.ErrOtherTape && !strings.Contains(err.Error(), "ids") {
				t.Errorf("%s, %s: %v does not name the ids", r, c.what, err)
			}
		}
		if y := m.Logits(nil, nil); y.Err() == nil {
			t.Error("no tape: no error")
		}
	}
}

// TestEmptyBatch: no tokens give no logits, and gradients of zeros.
func TestEmptyBatch(t *testing.T) {
	for _, r := range residuals {
		for _, s := range []tensor.Shape{{0, 5}, {2, 0}} {
			m := model(t, tiny(r, tensor.Float32), 1)
			tape := newTape(t)
			y := m.Logits(tape, tape.Const(must(tensor.FromSlice([]int64{}, s...))))
			if err := y.Err(); err != nil {
				t.Errorf("%s %v: %v", r, s, err)
				continue
			}
			if want := append(append(tensor.Shape{}, s...), 11); !y.Shape().Equal(want) {
				t.Errorf("%s: %v, want %v", r, y.Shape(), want)
			}
			g, err := tape.BackwardFrom(y, must(tensor.Zeros(tensor.Float32, y.Shape()...)))
			if err != nil || g.Len() != len(m.Parameters()) {
				t.Errorf("%s %v: %d gradients, %v", r, s, g.Len(), err)
				continue
			}
			for _, p := range m.Parameters() {
				for _, x := range must(must(tape.Download(g.Of(p.Value))).Float64s()) {
					if x != 0 {
						t.Fatal(fmt.Sprint(r, " ", s, ": the gradient of ", p.Name, " is ", x))
					}
				}
			}
		}
	}
}
