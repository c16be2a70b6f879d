// Package optim changes parameters by their gradients: AdamW, accumulation,
// clipping and a learning-rate schedule.
package optim

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/lamina-go/lamina/autograd"
	"github.com/lamina-go/lamina/device"
	"github.com/lamina-go/lamina/internal/elementary"
	"github.com/lamina-go/lamina/tensor"
)

// Param is a tensor to be trained.
type Param struct {
	Value *tensor.Tensor // any floating-point dtype
	Decay bool           // weight decay applies
}

func argError(op, arg string, got any, want string, kind error) error {
	return &tensor.ArgError{Op: op, Arg: arg, Got: fmt.Sprint(got), Want: want, Kind: kind}
}

// placed is row-major memory on dev that lives as long as its owner.
func placed(dev device.Device, d tensor.DType, shape tensor.Shape) (*tensor.Tensor, error) {
	m, err := dev.Alloc(shape.Len() * d.Size())
	if err != nil {
		return nil, err
	}
	t, err := tensor.New(m, d, shape...)
	if err != nil {
		return nil, err
	}
	return t, dev.Fill(context.Background(), t, 0)
}

func checkParams(op string, dev device.Device, params []Param) error {
	if dev == nil {
		return argError(op, "device", "nil", "a device", tensor.ErrMissing)
	}
	seen := make(map[tensor.Memory][]*tensor.Tensor)
	for i, p := range params {
		switch {
		case p.Value == nil:
			return argError(op, fmt.Sprintf("params[%d]", i), "nil", "a tensor", tensor.ErrMissing)
		case !p.Value.DType().IsFloat():
			return argError(op, fmt.Sprintf("params[%d]", i), p.Value.DType(), "a floating-point type", tensor.ErrDType)
		case p.Value.Device() != dev.Name():
			return argError(op, fmt.Sprintf("params[%d]", i), "on "+p.Value.Device().String(), "on "+dev.Name().String(), tensor.ErrDevice)
		case p.Value.HasOverlap():
			return argError(op, fmt.Sprintf("params[%d]", i), fmt.Sprintf("%v with strides %v", p.Value.Shape(), p.Value.Strides()), "one that reaches each element once", tensor.ErrAlias)
		case slices.ContainsFunc(seen[p.Value.Memory()], p.Value.Overlaps):
			return argError(op, fmt.Sprintf("params[%d]", i), "in the memory of one before it", "each parameter once", tensor.ErrAlias)
		}
		seen[p.Value.Memory()] = append(seen[p.Value.Memory()], p.Value)
	}
	return nil
}

// Accumulator sums the gradients of several backward passes, in the wide type
// of each parameter. Its memory is its own; it serves one goroutine at a time.
type Accumulator struct {
	dev     device.Device
	params  []Param
	sums    []*tensor.Tensor
	squares *tensor.Tensor   // the sum of squares of each of sums, (n) in float64
	each    []*tensor.Tensor // its elements, with the rank of that sum
}

// NewAccumulator makes zeros for each parameter.
func NewAccumulator(dev device.Device, params []Param) (*Accumulator, error) {
	if err := checkParams("accumulator", dev, params); err != nil {
		return nil, err
	}
	a := &Accumulator{dev: dev, params: slices.Clone(params)}
	for _, p := range params {
		t, err := placed(dev, p.Value.DType().Wide(), p.Value.Shape())
		if err != nil {
			return nil, err
		}
		a.sums = append(a.sums, t)
	}
	var err error
	if a.squares, err = placed(dev, tensor.Float64, tensor.Shape{len(params)}); err != nil {
		return nil, err
	}
	for i, t := range a.sums {
		ones := make([]int, t.Rank())
		for k := range ones {
			ones[k] = 1
		}
		x, err := tensor.NewStrided(a.squares.Memory(), tensor.Float64, ones, ones, i)
		if err != nil {
			return nil, err
		}
		a.each = append(a.each, x)
	}
	return a, nil
}

func noAccumulator() error {
	return argError("accumulator", "accumulator", "nil", "one that NewAccumulator made", tensor.ErrMissing)
}

// Reset sets the sums to zero.
func (a *Accumulator) Reset() error {
	if a == nil {
		return noAccumulator()
	}
	for _, t := range a.sums {
		if err := a.dev.Fill(context.Background(), t, 0); err != nil {
			return err
		}
	}
	return nil
}

// Add adds the gradients of one backward pass. A parameter without a gradient
// gets nothing. It completes even if the step's context is cancelled meanwhile.
func (a *Accumulator) Add(g autograd.Gradients) error {
	if a == nil {
		return noAccumulator()
	}
	for i, p := range a.params {
		if x := g.Of(p.Value); x != nil {
			if err := a.dev.Binary(context.Background(), device.Add, a.sums[i], a.sums[i], x); err != nil {
				return err
			}
		}
	}
	return nil
}

// Norm is the Euclidean norm of all sums together.
func (a *Accumulator) Norm() (float64, error) {
	if a == nil {
		return 0, noAccumulator()
	}
	for i, t := range a.sums {
		if err := a.dev.Reduce(context.Background(), device.SumSquares, a.each[i], t); err != nil {
			return 0, err
		}
	}
	s := device.NewStream(context.Background(), a.dev)
	defer s.Release()
	host, err := s.Download(a.squares)
	if err != nil {
		return 0, err
	}
	squares, err := host.Float64s()
	if err != nil {
		return 0, err
	}
	var total float64
	for _, x := range squares {
		total += x
	}
	return math.Sqrt(total), nil
}

// Scale multiplies the sums.
func (a *Accumulator) Scale(c float64) error {
	if a == nil {
		return noAccumulator()
	}
	for _, t := range a.sums {
		if err := a.dev.Unary(context.Background(), device.Unary{Func: device.MulScalar, A: c}, t, t); err != nil {
			return err
		}
	}
	return nil
}

// AdamWOptions are the usual ones; zero values are replaced by the defaults.
type AdamWOptions struct {
	Beta1, Beta2 float64 // 0: 0.9, 0.95
	Eps          float64 // 0: 1e-8
	WeightDecay  float64 // per unit of learning rate
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019). For
// parameters in 16-bit formats it keeps float32 weights of its own, and the
// parameters are those, rounded.
type AdamW struct {
	dev    device.Device
	params []Param
	o      AdamWOptions
	step   int
	m, v   []*tensor.Tensor
	master []*tensor.Tensor // the parameter itself where that is not 16-bit
}

// NewAdamW makes the optimizer's state. Errors: a nil or misplaced parameter,
// betas outside [0,1), eps or decay negative or not finite.
func NewAdamW(dev device.Device, params []Param, o AdamWOptions) (*AdamW, error) {
	if err := checkParams("adamw", dev, params); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		x  *float64
		is float64
	}{{&o.Beta1, 0.9}, {&o.Beta2, 0.95}, {&o.Eps, 1e-8}} {
		if *d.x == 0 {
			*d.x = d.is
		}
	}
	if !(o.Beta1 >= 0 && o.Beta1 < 1 && o.Beta2 >= 0 && o.Beta2 < 1 && o.Eps > 0 && o.WeightDecay >= 0) || math.IsInf(o.Eps+o.WeightDecay, 0) {
		return nil, argError("adamw", "options", fmt.Sprintf("%+v", o), "betas in [0,1), eps > 0, decay >= 0", tensor.ErrValue)
	}
	a := &AdamW{dev: dev, params: slices.Clone(params), o: o}
	for _, p := range params {
		d := p.Value.DType()
		for _, list := range []*[]*tensor.Tensor{&a.m, &a.v} {
			t, err := placed(dev, d.Wide(), p.Value.Shape())
			if err != nil {
				return nil, err
			}
			*list = append(*list, t)
		}
		w := p.Value
		if d.IsHalf() {
			var err error
			if w, err = placed(dev, d.Wide(), p.Value.Shape()); err != nil {
				return nil, err
			}
			if err = dev.Copy(context.Background(), w, p.Value); err != nil {
				return nil, err
			}
		}
		a.master = append(a.master, w)
	}
	return a, nil
}

// Step moves every parameter by the accumulated gradient at the given learning
// rate. It runs to its end whatever happens meanwhile, so that no parameter is left half-way.
func (a *AdamW) Step(g *Accumulator, lr float64) error {
	if a == nil {
		return argError("adamw", "optimizer", "nil", "one that NewAdamW made", tensor.ErrMissing)
	}
	same := func(p, q Param) bool { return p.Value == q.Value }
	if g == nil || !slices.EqualFunc(g.params, a.params, same) {
		return argError("adamw", "gradients", "of other parameters", "an Accumulator of the same ones", tensor.ErrCount)
	}
	if !(lr >= 0) || math.IsInf(lr, 0) {
		return argError("adamw", "lr", lr, "a finite number of at least 0", tensor.ErrValue)
	}
	a.step++
	ctx := context.Background()
	s := device.NewStream(ctx, a.dev)
	defer s.Release()
	c1 := 1 - elementary.Pow(a.o.Beta1, float64(a.step))
	c2 := 1 - elementary.Pow(a.o.Beta2, float64(a.step))
	fused, _ := a.dev.(device.AdamW)
	k := device.AdamWConstants{Beta1: a.o.Beta1, Beta2: a.o.Beta2, Decay: 1, Rate: lr / c1, Root: 1 / math.Sqrt(c2), Eps: a.o.Eps}
	for i, p := range a.params {
		if fused != nil {
			k.Decay = 1
			if p.Decay {
				k.Decay = 1 - float64(lr*a.o.WeightDecay)
			}
			w := a.master[i]
			if !s.Try(func(ctx context.Context, _ device.Device) error {
				return fused.AdamWStep(ctx, k, w, a.m[i], a.v[i], g.sums[i])
			}) {
				if w != p.Value {
					s.Run(func(ctx context.Context, dev device.Device) error { return dev.Copy(ctx, p.Value, w) })
				}
				continue
			}
		}
		d := a.m[i].DType()
		mix := func(mean *tensor.Tensor, beta float64, x *tensor.Tensor) { // mean = beta mean + (1-beta) x
			part := s.Unary(device.Unary{Func: device.MulScalar, A: 1 - beta}, d, x)
			s.Run(func(ctx context.Context, dev device.Device) error {
				if err := dev.Unary(ctx, device.Unary{Func: device.MulScalar, A: beta}, mean, mean); err != nil {
					return err
				}
				return dev.Binary(ctx, device.Add, mean, mean, part)
			})
			s.Free(part)
		}
		mix(a.m[i], a.o.Beta1, g.sums[i])
		sq := s.Unary(device.Unary{Func: device.Square}, d, g.sums[i])
		mix(a.v[i], a.o.Beta2, sq)
		root := s.Unary(device.Unary{Func: device.Sqrt}, d, a.v[i])
		s.Run(func(ctx context.Context, dev device.Device) error {
			w := a.master[i]
			// root = sqrt(v/c2) + eps, sq = lr/c1 m / root
			for _, f := range []device.Unary{{Func: device.MulScalar, A: 1 / math.Sqrt(c2)}, {Func: device.AddScalar, A: a.o.Eps}} {
				if err := dev.Unary(ctx, f, root, root); err != nil {
					return err
				}
			}
			if err := dev.Binary(ctx, device.Div, sq, a.m[i], root); err != nil {
				return err
			}
			if err := dev.Unary(ctx, device.Unary{Func: device.MulScalar, A: lr / c1}, sq, sq); err != nil {
				return err
			}
			if p.Decay && a.o.WeightDecay > 0 {
				if err := dev.Unary(ctx, device.Unary{Func: device.MulScalar, A: 1 - float64(lr*a.o.WeightDecay)}, w, w); err != nil {
					return err
				}
			}
			if err := dev.Binary(ctx, device.Sub, w, w, sq); err != nil {
				return err
			}
			if w != p.Value {
				return dev.Copy(ctx, p.Value, w)
			}
			return nil
		})
		s.Free(sq, root)
	}
	return s.Err()
}

// Cosine is the learning rate of step 0..steps-1: a linear warm-up to peak over
// the first warmup steps, then half a cosine down to floor. A step before 0 is taken as 0.
func Cosine(step, warmup, steps int, peak, floor float64) float64 {
	step = max(step, 0)
	if step < warmup {
		return peak * float64(step+1) / float64(warmup)
	}
	if step >= steps || steps <= warmup {
		return floor
	}
	warmup = max(warmup, 0)
	x := float64(step-warmup) / float64(steps-warmup)
	return floor + (peak-floor)*(1+elementary.Cos(math.Pi*x))/2
}
