package precision

import (
	"math"

	"github.com/lamina-go/lamina/random"
)

// Distribution fills tensors with numbers. Element i is a function of the
// source and i alone, so a large tensor can be made in slices.
type Distribution struct {
	Name string
	at   func(s random.Source, i uint64) float64
}

// At is element i; 0 for the zero value.
func (d Distribution) At(s random.Source, i uint64) float64 {
	if d.at == nil {
		return 0
	}
	return d.at(s, i)
}

// Fill sets dst to the elements from first on.
func (d Distribution) Fill(dst []float64, s random.Source, first uint64) {
	for i := range dst {
		dst[i] = d.At(s, first+uint64(i))
	}
}

// Uniform is uniform over [low, high).
func Uniform(low, high float64) Distribution {
	return Distribution{"uniform", func(s random.Source, i uint64) float64 { return low + (high-low)*s.Float64(i) }}
}

// Normal has the given mean and standard deviation.
func Normal(mean, deviation float64) Distribution {
	return Distribution{"normal", func(s random.Source, i uint64) float64 { return mean + deviation*s.Normal(i) }}
}

// Constant is one value everywhere.
func Constant(name string, x float64) Distribution {
	return Distribution{name, func(random.Source, uint64) float64 { return x }}
}

// WithOutliers multiplies one element in a thousand, on average and at random, by 1,000.
func WithOutliers(d Distribution) Distribution {
	return Distribution{"outliers", func(s random.Source, i uint64) float64 {
		x := d.At(s, i)
		if (random.Source{Seed: s.Seed, Stream: s.Stream ^ 0x6f75746c69657273}).Float64(i) < 1e-3 {
			x *= 1000
		}
		return x
	}}
}

// InputsOf is the distribution of one input of a case, as the level asks for:
// L0 takes [-5,5) uniformly or a normal distribution with a mean in [-100,100]
// and a deviation in [1,25], each half of the time; L1 and L2 take [-1e-3,1e-3)
// for 10 %, [-5,5) for 30 %, a normal one for 40 %, and a normal one with
// outliers for 20 %. The source decides, by its numbers 0 to 2.
func InputsOf(l Level, s random.Source) Distribution {
	mean, deviation := -100+200*s.Float64(1), 1+24*s.Float64(2)
	x := s.Float64(0)
	if l.Name == L0.Name {
		if x < 0.5 {
			return Uniform(-5, 5)
		}
		return Normal(mean, deviation)
	}
	switch {
	case x < 0.1:
		return Uniform(-1e-3, 1e-3)
	case x < 0.4:
		return Uniform(-5, 5)
	case x < 0.8:
		return Normal(mean, deviation)
	}
	return WithOutliers(Normal(mean, deviation))
}

// Specials are the inputs that are not drawn: all NaN, all +Inf, and +Inf and
// -Inf mixed among ordinary numbers. The two shapes that are special, the empty
// one and that of ones, are the caller's.
func Specials() []Distribution {
	return []Distribution{
		Constant("all NaN", math.NaN()),
		Constant("all Inf", math.Inf(1)),
		{"mixed Inf", func(s random.Source, i uint64) float64 {
			switch x := s.Float64(i); {
			case x < 0.01:
				return math.Inf(1)
			case x < 0.02:
				return math.Inf(-1)
			}
			return (random.Source{Seed: s.Seed, Stream: s.Stream + 1}).Normal(i)
		}},
	}
}
