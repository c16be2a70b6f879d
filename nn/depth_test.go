package nn_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/autograd/gradcheck"
	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/nn"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

var (
	dev    = cpu.New(cpu.Threads(2))
	floats = []tensor.DType{tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16}
)

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

func normal(seed uint64, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = random.Source{Seed: seed}.Normal(uint64(i))
	}
	return x
}

// row is one token's vector, (1,1,D).
func row(tape *autograd.Tape, d tensor.DType, x ...float64) *autograd.Var {
	return tape.Watch(must(tensor.FromFloat64s(d, x, 1, 1, len(x))))
}

func vector(tape *autograd.Tape, d tensor.DType, x ...float64) *autograd.Var {
	return tape.Watch(must(tensor.FromFloat64s(d, x, len(x))))
}

func read(t *testing.T, y *autograd.Var) []float64 {
	t.Helper()
	x, err := y.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func close(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
		return
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= tolerance) {
			t.Errorf("%s: %v, want %v", what, got, want)
			return
		}
	}
}

// attend is one read by its definition: the softmax over sources of
// query . gain rmsnorm(source), times the sources as they are.
func attend(sources [][]float64, query, gain []float64, eps float64) (h, alpha []float64) {
	sum := 0.0
	for _, v := range sources {
		square, dot := 0.0, 0.0
		for i, x := range v {
			square += x * x
			dot += query[i] * gain[i] * x
		}
		w := math.Exp(dot / math.Sqrt(square/float64(len(v))+eps))
		alpha = append(alpha, w)
		sum += w
	}
	h = make([]float64, len(query))
	for l, v := range sources {
		alpha[l] /= sum
		for i, x := range v {
			h[i] += alpha[l] * x
		}
	}
	return h, alpha
}

// TestWalk: two blocks of two sublayers, with the numbers written out.
func TestWalk(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Float64, tensor.Float32} {
		tape := newTape(t)
		query, gain := vector(tape, d, 2, 0, 0, 0), vector(tape, d, 1, 1, 1, 1)
		depth := must(nn.NewDepth(nn.Block, 2, row(tape, d, 3, 0, 0, 0)))
		outputs := [][]float64{{0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}, {0, 1, 1, 1}}
		for i, want := range [][]float64{
			{3, 0, 0, 0},
			{2.946041, 0.0179862, 0, 0},
			{2.946041, 0.0179862, 0.0179862, 0},
			{2.893989, 0.0176684, 0.0176684, 0.0176684},
			{2.893989, 0.0353369, 0.0353369, 0.0353369},
		} {
			close(t, fmt.Sprint("read ", i+1), read(t, depth.Read(query, gain, 1e-6)), want, 1e-6)
			if i < len(outputs) {
				depth.Add(row(tape, d, outputs[i]...))
			}
		}
	}
}

// TestSources: how many sources each of 24 sublayers and the output see, for
// blocks of 8, and what other sizes give.
func TestSources(t *testing.T) {
	for _, c := range []struct {
		residual          nn.Residual
		size, n           int
		runs              [][2]int // sources, how many sublayers in a row
		atTheOutput, full int
	}{
		{nn.Block, 8, 24, [][2]int{{1, 1}, {2, 7}, {2, 1}, {3, 7}, {3, 1}, {4, 7}}, 4, 0},
		{nn.Block, 8, 20, [][2]int{{1, 1}, {2, 7}, {2, 1}, {3, 7}, {3, 1}, {4, 3}}, 4, 0},
		{nn.Block, 1, 4, [][2]int{{1, 1}, {2, 1}, {3, 1}, {4, 1}}, 5, 0},
		{nn.Block, 99, 4, [][2]int{{1, 1}, {2, 3}}, 2, 0},
		{nn.Full, 0, 4, [][2]int{{1, 1}, {2, 1}, {3, 1}, {4, 1}}, 5, 0},
		{nn.Full, 8, 4, [][2]int{{1, 1}, {2, 1}, {3, 1}, {4, 1}}, 5, 0},
		{nn.PreNorm, 8, 4, [][2]int{{1, 4}}, 1, 0},
	} {
		tape := newTape(t)
		depth := must(nn.NewDepth(c.residual, c.size, row(tape, tensor.Float32, 1, 2)))
		query, gain := vector(tape, tensor.Float32, 1, 1), vector(tape, tensor.Float32, 1, 1)
		var got, want []int
		look := func() {
			got = append(got, depth.Sources())
			if c.residual == nn.PreNorm {
				return
			}
			if l := depth.Weights(query, gain, 1e-6).Shape(); l[2] != depth.Sources() {
				t.Errorf("%d weights of %d sources", l[2], depth.Sources())
			}
		}
		for range c.n {
			look()
			depth.Add(row(tape, tensor.Float32, 3, 4))
		}
		look()
		for _, r := range c.runs {
			want = append(want, slices.Repeat([]int{r[0]}, r[1])...)
		}
		if want = append(want, c.atTheOutput); !slices.Equal(got, want) {
			t.Errorf("%s of %d: %v, want %v", c.residual, c.size, got, want)
		}
	}
}

// TestReads compares each read, and its weights, with the definition, for block
// sizes that do and do not divide the number of sublayers.
func TestReads(t *testing.T) {
	const width, n = 5, 7
	for _, c := range []struct {
		residual nn.Residual
		size     int
	}{{nn.Block, 1}, {nn.Block, 2}, {nn.Block, 3}, {nn.Block, 7}, {nn.Block, 8}, {nn.Full, 0}} {
		tape := newTape(t)
		start := normal(100, width)
		depth := must(nn.NewDepth(c.residual, c.size, row(tape, tensor.Float64, start...)))
		size := max(c.size, 1)
		finished := [][]float64{start}
		var partial []float64
		for i := range n + 1 {
			query, gain := normal(uint64(i), width), normal(uint64(50+i), width)
			sources := finished
			if partial != nil { // the first sublayer of a block has none
				sources = append(slices.Clone(finished), partial)
			}
			h, alpha := attend(sources, query, gain, 1e-3)
			q, g := vector(tape, tensor.Float64, query...), vector(tape, tensor.Float64, gain...)
			what := fmt.Sprintf("%s of %d, read %d", c.residual, c.size, i)
			close(t, what, read(t, depth.Read(q, g, 1e-3)), h, 1e-13)
			close(t, what+": weights", read(t, depth.Weights(q, g, 1e-3)), alpha, 1e-13)
			out := normal(uint64(200+i), width)
			depth.Add(row(tape, tensor.Float64, out...))
			if partial == nil {
				partial = make([]float64, width)
			}
			sum := slices.Clone(partial)
			for k, x := range out {
				sum[k] += x
			}
			if partial = sum; (i+1)%size == 0 {
				finished, partial = append(finished, partial), nil
			}
		}
	}
}

// TestFullIsBlocksOfOne: to the bit.
func TestFullIsBlocksOfOne(t *testing.T) {
	for _, d := range floats {
		tape := newTape(t)
		a, b := must(nn.NewDepth(nn.Full, 0, row(tape, d, normal(1, 6)...))), must(nn.NewDepth(nn.Block, 1, row(tape, d, normal(1, 6)...)))
		query, gain := vector(tape, d, normal(2, 6)...), vector(tape, d, normal(3, 6)...)
		for i := range 6 {
			if x, y := read(t, a.Read(query, gain, 1e-6)), read(t, b.Read(query, gain, 1e-6)); !slices.Equal(x, y) {
				t.Errorf("%v, read %d: %v and %v", d, i, x, y)
			}
			out := row(tape, d, normal(uint64(10+i), 6)...)
			a.Add(out)
			b.Add(out)
		}
	}
}

// TestPreNormIsASum: the plain running sum, whatever query and gain.
func TestPreNormIsASum(t *testing.T) {
	tape := newTape(t)
	depth := must(nn.NewDepth(nn.PreNorm, 0, row(tape, tensor.Float64, 1, 2)))
	want := []float64{1, 2}
	for i := range 5 {
		close(t, "read", read(t, depth.Read(nil, nil, 0)), want, 0)
		depth.Add(row(tape, tensor.Float64, float64(i), 10))
		want = []float64{want[0] + float64(i), want[1] + 10}
	}
	close(t, "read", read(t, depth.Read(nil, nil, 0)), want, 0)
}

// TestUniformReads: a query of zeros reads the stream divided by the number of sources.
func TestUniformReads(t *testing.T) {
	tape := newTape(t)
	block, plain := must(nn.NewDepth(nn.Block, 3, row(tape, tensor.Float64, normal(1, 4)...))), must(nn.NewDepth(nn.PreNorm, 0, row(tape, tensor.Float64, normal(1, 4)...)))
	query, gain := vector(tape, tensor.Float64, 0, 0, 0, 0), vector(tape, tensor.Float64, 1, 1, 1, 1)
	for i := range 8 {
		want := read(t, plain.Read(nil, nil, 0))
		for k := range want {
			want[k] /= float64(block.Sources())
		}
		close(t, fmt.Sprint("read ", i), read(t, block.Read(query, gain, 1e-6)), want, 1e-14)
		out := row(tape, tensor.Float64, normal(uint64(9+i), 4)...)
		block.Add(out)
		plain.Add(out)
	}
}

// TestDepthGradients goes back through seven sublayers, one of whose outputs is added twice.
func TestDepthGradients(t *testing.T) {
	for _, c := range []struct {
		residual nn.Residual
		size     int
	}{{nn.PreNorm, 0}, {nn.Block, 3}, {nn.Block, 1}, {nn.Full, 0}} {
		var in []*tensor.Tensor
		for i := range 7 {
			in = append(in, must(tensor.FromFloat64s(tensor.Float64, normal(uint64(i), 2*3*4), 2, 3, 4)))
		}
		in = append(in, must(tensor.FromFloat64s(tensor.Float64, normal(8, 4), 4)), must(tensor.FromFloat64s(tensor.Float64, normal(9, 4), 4)))
		gradcheck.Test(t, dev, func(tape *autograd.Tape, in []*autograd.Var) *autograd.Var {
			depth, err := nn.NewDepth(c.residual, c.size, in[0])
			if err != nil {
				return nil
			}
			query, gain := in[7], in[8]
			for i := range 6 {
				depth.Add(in[1+i])
				depth.Add(depth.Read(query, gain, 1e-4))
			}
			depth.Add(in[2])
			return depth.Read(query, gain, 1e-4)
		}, in, gradcheck.Options{Directions: 12, Tolerance: 1e-9, Order: 4, Step: 1e-4})
	}
}

func TestDepthRefusals(t *testing.T) {
	x := row(newTape(t), tensor.Float32, 1)
	for _, c := range []struct {
		residual nn.Residual
		size     int
	}{{"postnorm", 1}, {"", 1}, {nn.Block, 0}, {nn.Block, -3}} {
		if _, err := nn.NewDepth(c.residual, c.size, x); !errors.Is(err, tensor.ErrValue) {
			t.Errorf("%q of %d: %v", c.residual, c.size, err)
		}
	}
	for _, name := range []string{"prenorm", "block", "full"} {
		if r, err := nn.ParseResidual(name); err != nil || string(r) != name {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	if _, err := nn.ParseResidual("Block"); !errors.Is(err, tensor.ErrValue) {
		t.Errorf("Block: %v", err)
	}
	// A sublayer's output of another shape is the tape's failure, in every kind of residual.
	for _, r := range []nn.Residual{nn.PreNorm, nn.Block, nn.Full} {
		tape := newTape(t)
		depth := must(nn.NewDepth(r, 2, row(tape, tensor.Float32, 1, 2)))
		depth.Add(row(tape, tensor.Float32, 1, 2, 3))
		y := depth.Read(vector(tape, tensor.Float32, 1, 2), vector(tape, tensor.Float32, 1, 2), 1e-6)
		if !errors.Is(y.Err(), tensor.ErrShape) {
			t.Errorf("%s: %v", r, y.Err())
		}
	}
}
