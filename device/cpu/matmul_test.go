package cpu_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/lamina-go/lamina/device/cpu"
	"github.com/lamina-go/lamina/random"
	"github.com/lamina-go/lamina/tensor"
)

// matrix makes a tensor of shape (batch,rows,cols) in one of several layouts.
func matrix(t *testing.T, d tensor.DType, layout string, stream uint64, batch, rows, cols int) *tensor.Tensor {
	t.Helper()
	src := random.Source{Seed: 11, Stream: stream}
	noise := func(shape ...int) *tensor.Tensor {
		x := make([]float64, tensor.Shape(shape).Len())
		for i := range x {
			x[i] = src.Normal(uint64(i))
		}
		v, err := tensor.FromFloat64s(d, x, shape...)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	var v *tensor.Tensor
	var err error
	switch layout {
	case "rows":
		return noise(batch, rows, cols)
	case "columns":
		v, err = noise(batch, cols, rows).Transpose(1, 2)
	case "sliced":
		if v, err = noise(batch+1, rows+2, 2*cols+1).Slice(0, 1, batch+1); err == nil {
			if v, err = v.Slice(1, 2, rows+2); err == nil {
				// Every second column.
				v, err = tensor.NewStrided(v.Memory(), d, []int{batch, rows, cols}, []int{v.Strides()[0], v.Strides()[1], 2}, v.Offset())
			}
		}
	case "one for all":
		v, err = noise(1, rows, cols).Expand(batch, rows, cols)
	case "one row":
		v, err = noise(batch, 1, cols).Expand(batch, rows, cols)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var matrixLayouts = []string{"rows", "columns", "sliced", "one for all", "one row"}

func values(t *testing.T, x *tensor.Tensor) []float64 {
	t.Helper()
	v, err := x.Float64s()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// canonical is the product in the documented order, in F, and the sum of the
// absolute values of its terms.
func canonical[F float32 | float64](a, b []float64, batch, m, k, n int) (want, terms []float64) {
	want, terms = make([]float64, batch*m*n), make([]float64, batch*m*n)
	for e := range want {
		i, r, c := e/(m*n), e/n%m, e%n
		var sum F
		for k0 := 0; k0 < k; k0 += 384 {
			var part F
			for j := k0; j < min(k0+384, k); j++ {
				x, y := F(a[(i*m+r)*k+j]), F(b[(i*k+j)*n+c])
				part = fused(x, y, part)
				terms[e] += math.Abs(float64(x) * float64(y))
			}
			sum += part
		}
		want[e] = float64(sum)
	}
	return want, terms
}

// fused is x*y + z, rounded once.
func fused[F float32 | float64](x, y, z F) F {
	if a, ok := any(x).(float32); ok {
		return F(cpu.FMA32(a, float32(y), float32(z)))
	}
	return F(math.FMA(float64(x), float64(y), float64(z)))
}

// The portable fused multiply-add of float32 against exact arithmetic: random
// numbers of any exponent, and sums next to ties.
func TestFMA32(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 1))
	number := func() float32 {
		switch r.IntN(6) {
		case 0:
			return math.Float32frombits(r.Uint32())
		case 1:
			return float32(r.IntN(9) - 4)
		}
		return float32(math.Ldexp(1+float64(r.IntN(1<<r.IntN(24)))/(1<<23), r.IntN(60)-30) * float64(1-2*r.IntN(2)))
	}
	count := 2000000
	if testing.Short() {
		count = 300000
	}
	slow := 0
	for range count {
		a, b, c := number(), number(), number()
		switch r.IntN(5) {
		case 4: // the product half a unit of c, less by what float64 does not see in the sum
			x := float32(math.Ldexp(1, -12-r.IntN(11)))
			a, b = 1+x, float32(math.Ldexp(1, -24))*(1-x)
			c = (1 + float32(r.IntN(4))*0x1p-23) * float32(1-2*r.IntN(2))
		case 0: // c half a unit of the product, or less by little
			c = a * b * float32(math.Ldexp(1, -24-r.IntN(30)))
		case 1: // the product half a unit of c, or less by little
			c = a * b * float32(math.Ldexp(1, 23+r.IntN(30)))
		}
		got := cpu.FMA32(a, b, c)
		if x := a - a + b - b + c - c; x != 0 {
			if want := float32(float64(a)*float64(b) + float64(c)); got != want && (got == got || want == want) {
				t.Fatalf("%v*%v+%v is %v, want %v", a, b, c, got, want)
			}
			continue
		}
		exact := new(big.Float).SetPrec(2000).SetFloat64(float64(a))
		exact.Mul(exact, big.NewFloat(float64(b)))
		exact.Add(exact, big.NewFloat(float64(c)))
		want, _ := exact.Float32()
		if got != want {
			t.Fatalf("%x*%x+%x is %x, want %x", a, b, c, got, want)
		}
		if want != float32(float64(a)*float64(b)+float64(c)) {
			slow++
		}
	}
	if slow < count/4000 {
		t.Errorf("only %d of %d sums need care", slow, count)
	}
}

func multiply(t *testing.T, dev *cpu.Device, d tensor.DType, layout string, a, b *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	out := matrix(t, d, layout, 99, a.Dim(0), a.Dim(1), b.Dim(2))
	if err := dev.MatMul(context.Background(), out, a, b); err != nil {
		t.Fatal(err)
	}
	return out
}

// Every path gives the bits of the canonical order, in every dtype, layout and tier.
func TestMatMulOrder(t *testing.T) { cpu.EachTier(t, matMulOrder) }

func matMulOrder(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 33, 63, 65, 129}
	src := random.Source{Seed: 3}
	n := 0
	draw := func(of int) int { n++; return src.Intn(uint64(n), of) }
	dtypes := []tensor.DType{tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16}
	devs := []*cpu.Device{cpu.New(cpu.Threads(1)), cpu.New(cpu.Threads(3)), cpu.New(cpu.Threads(7))}
	for _, d := range devs {
		defer d.Close()
	}
	runs := 400
	if testing.Short() {
		runs, devs = 60, devs[1:2]
	}
	// More than one block of columns, rows and k, for many rows and few.
	blocks := []struct {
		batch, m, k, n int
		dtype          tensor.DType
		a, b           string
	}{
		{1, 200, 400, 300, tensor.Float32, "rows", "rows"}, {1, 200, 400, 300, tensor.Float32, "columns", "columns"}, {1, 101, 390, 515, tensor.BFloat16, "sliced", "rows"},
		{2, 5, 800, 70, tensor.Float32, "rows", "rows"}, {1, 3, 390, 600, tensor.Float64, "rows", "rows"}, {1, 600, 390, 3, tensor.Float32, "rows", "columns"}, {1, 20, 37, 50, tensor.Float32, "rows", "columns"},
		// One row, or one column.
		{1, 1, 416, 77, tensor.Float32, "rows", "rows"}, {1, 1, 416, 77, tensor.Float32, "sliced", "columns"}, {1, 1, 800, 50, tensor.BFloat16, "sliced", "columns"},
		{1, 1, 390, 50, tensor.BFloat16, "rows", "rows"}, {1, 70, 416, 1, tensor.Float32, "rows", "rows"}, {3, 33, 416, 1, tensor.Float16, "rows", "rows"},
		{1, 33, 390, 1, tensor.Float16, "columns", "rows"}, {1, 1, 35, 9000, tensor.Float32, "columns", "rows"}, {1, 1, 32, 1100, tensor.BFloat16, "rows", "columns"},
	}
	for run := range runs {
		batch, m, k, c := 1+draw(3), sizes[draw(len(sizes))], sizes[draw(len(sizes))], sizes[draw(len(sizes))]
		if run%7 == 0 {
			k = []int{0, 383, 384, 385, 769}[draw(5)]
		}
		if run%5 == 0 {
			m, batch = 1, 40
		}
		if run%11 == 0 {
			c = 1
		}
		da, db, do := dtypes[draw(4)], dtypes[draw(4)], dtypes[draw(4)]
		la, lb, lo := matrixLayouts[draw(5)], matrixLayouts[draw(5)], matrixLayouts[draw(3)]
		name := fmt.Sprintf("run %d: %d x (%d,%d)x(%d,%d), %v %v %v, %s %s %s", run, batch, m, k, k, c, da, db, do, la, lb, lo)
		a, b := matrix(t, da, la, uint64(run), batch, m, k), matrix(t, db, lb, uint64(run)+1000, batch, k, c)
		if run < len(blocks) {
			x := blocks[run]
			batch, m, k, c, da, db, do, la, lb = x.batch, x.m, x.k, x.n, x.dtype, x.dtype, x.dtype, x.a, x.b
			lo = "rows"
			name = fmt.Sprintf("blocks %+v", x)
			a, b = matrix(t, da, la, uint64(run), batch, m, k), matrix(t, db, lb, uint64(run)+1000, batch, k, c)
		}
		wide := da == tensor.Float64 || db == tensor.Float64 || do == tensor.Float64
		var want, terms []float64
		if wide {
			want, terms = canonical[float64](values(t, a), values(t, b), batch, m, k, c)
		} else {
			want, terms = canonical[float32](values(t, a), values(t, b), batch, m, k, c)
		}
		exact, _ := canonical[float64](values(t, a), values(t, b), batch, m, k, c)
		for _, dev := range devs {
			got := values(t, multiply(t, dev, do, lo, a, b))
			for i, g := range got {
				if w := tensor.Round(do, want[i]); g != w {
					t.Fatalf("%s: element %d is %v, want %v", name, i, g, w)
				}
				unit := 0x1p-24
				if wide {
					unit = 0x1p-53
				}
				if diff := math.Abs(want[i] - exact[i]); diff > float64(k+1)*unit*terms[i] {
					t.Fatalf("%s: element %d is %v off", name, i, diff)
				}
			}
		}
	}
}

// A NaN or an infinity stays in its row and column.
func TestMatMulIsolation(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	const m, k, n = 70, 400, 130
	a, b := matrix(t, tensor.Float32, "rows", 1, 1, m, k), matrix(t, tensor.Float32, "rows", 2, 1, k, n)
	clean := values(t, multiply(t, dev, tensor.Float32, "rows", a, b))
	x := values(t, a)
	x[33*k+7], x[65*k+399] = math.NaN(), math.Inf(1)
	if err := a.SetFloat64s(x); err != nil {
		t.Fatal(err)
	}
	for i, g := range values(t, multiply(t, dev, tensor.Float32, "rows", a, b)) {
		switch i / n {
		case 33:
			if !math.IsNaN(g) {
				t.Fatalf("row 33 has %v", g)
			}
		case 65:
			if !math.IsInf(g, 0) && !math.IsNaN(g) {
				t.Fatalf("row 65 has %v", g)
			}
		default:
			if g != clean[i] {
				t.Fatalf("row %d changed", i/n)
			}
		}
	}
}

func TestMatMulCancel(t *testing.T) {
	dev := cpu.New()
	defer dev.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a := matrix(t, tensor.Float32, "rows", 1, 1, 3, 3)
	if err := dev.MatMul(ctx, matrix(t, tensor.Float32, "rows", 2, 1, 3, 3), a, a); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := dev.MatMul(context.Background(), a, a, a); !errors.Is(err, tensor.ErrAlias) {
		t.Errorf("onto an operand: %v", err)
	}
}
