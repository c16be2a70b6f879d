package elementary

import (
	"math"
	"math/big"
	"sync"
)

// This file evaluates the elementary functions with math/big. It shares
// nothing with the package under test: every function is summed from its
// series with a good number of guard bits, and is slow.

// bigPrec is the precision, in bits, of references handed to the tests.
const bigPrec = 256

func bigNew(prec uint) *big.Float { return new(big.Float).SetPrec(prec) }

func bigFloat(prec uint, x float64) *big.Float { return bigNew(prec).SetFloat64(x) }

func bigInt(prec uint, n int64) *big.Float { return bigNew(prec).SetInt64(n) }

// negligible reports whether term no longer changes sum at precision prec.
func negligible(term, sum *big.Float, prec uint) bool {
	if term.Sign() == 0 {
		return true
	}
	return sum.Sign() != 0 && term.MantExp(nil) < sum.MantExp(nil)-int(prec)-4
}

var bigConstants sync.Map

func bigConstant(name string, prec uint, make func(prec uint) *big.Float) *big.Float {
	type key struct {
		name string
		prec uint
	}
	k := key{name, prec}
	if v, ok := bigConstants.Load(k); ok {
		return v.(*big.Float)
	}
	v := make(prec)
	bigConstants.Store(k, v)
	return v
}

// bigArcTanInv returns arctan(1/n), or arctanh(1/n) when hyperbolic.
func bigArcTanInv(prec uint, n int64, hyperbolic bool) *big.Float {
	sum := bigNew(prec)
	power := bigNew(prec).Quo(bigInt(prec, 1), bigInt(prec, n))
	square := bigInt(prec, n*n)
	for k := int64(0); ; k++ {
		term := bigNew(prec).Quo(power, bigInt(prec, 2*k+1))
		if negligible(term, sum, prec) {
			return sum
		}
		if k%2 == 1 && !hyperbolic {
			term.Neg(term)
		}
		sum.Add(sum, term)
		power.Quo(power, square)
	}
}

func bigPi(prec uint) *big.Float {
	return bigConstant("pi", prec, func(prec uint) *big.Float {
		p := prec + 32
		a := bigNew(p).Mul(bigInt(p, 16), bigArcTanInv(p, 5, false))
		b := bigNew(p).Mul(bigInt(p, 4), bigArcTanInv(p, 239, false))
		return bigNew(prec).Sub(a, b)
	})
}

func bigLn2(prec uint) *big.Float {
	return bigConstant("ln2", prec, func(prec uint) *big.Float {
		p := prec + 32
		return bigNew(prec).Mul(bigInt(p, 2), bigArcTanInv(p, 3, true))
	})
}

// bigExp returns e**x.
func bigExp(prec uint, x *big.Float) *big.Float {
	p := prec + 96
	q, _ := bigNew(64).Quo(x, bigLn2(64)).Float64()
	k := int64(math.Floor(q + 0.5))
	r := bigNew(p).Mul(bigInt(p, k), bigLn2(p))
	r.Sub(bigNew(p).Set(x), r)
	const halvings = 8
	r.SetMantExp(r, -halvings)
	sum := bigInt(p, 1)
	term := bigInt(p, 1)
	for n := int64(1); ; n++ {
		term.Mul(term, r)
		term.Quo(term, bigInt(p, n))
		if negligible(term, sum, p) {
			break
		}
		sum.Add(sum, term)
	}
	for range halvings {
		sum.Mul(sum, sum)
	}
	return bigNew(prec).SetMantExp(sum, int(k))
}

// bigExpm1 returns e**x - 1.
func bigExpm1(prec uint, x *big.Float) *big.Float {
	guard := uint(8)
	if e := x.MantExp(nil); e < 0 {
		guard += uint(-e)
	}
	if x.Sign() == 0 || guard > 400 {
		// x + x*x/2 is more than is needed.
		half := bigNew(prec).Mul(x, x)
		half.SetMantExp(half, -1)
		return half.Add(half, x)
	}
	return bigNew(prec).Sub(bigExp(prec+guard, x), bigInt(prec, 1))
}

// bigLog returns the natural logarithm of x > 0.
func bigLog(prec uint, x *big.Float) *big.Float {
	p := prec + 64
	m := bigNew(p)
	k := x.MantExp(m)
	if m.Cmp(bigFloat(p, 0.7)) < 0 {
		m.SetMantExp(m, 1)
		k--
	}
	if k == 0 {
		// Near one the quotient below carries the relative precision.
		p += x.Prec()
		m = bigNew(p).Set(x)
	}
	one := bigInt(p, 1)
	s := bigNew(p).Quo(bigNew(p).Sub(m, one), bigNew(p).Add(m, one))
	square := bigNew(p).Mul(s, s)
	sum := bigNew(p)
	for n := int64(0); s.Sign() != 0; n++ {
		term := bigNew(p).Quo(s, bigInt(p, 2*n+1))
		if negligible(term, sum, p) {
			break
		}
		sum.Add(sum, term)
		s.Mul(s, square)
	}
	sum.SetMantExp(sum, 1)
	return bigNew(prec).Add(sum, bigNew(p).Mul(bigInt(p, int64(k)), bigLn2(p)))
}

// bigLog1p returns log(1+x) for x > -1.
func bigLog1p(prec uint, x *big.Float) *big.Float {
	if x.Sign() == 0 {
		return bigNew(prec)
	}
	e := x.MantExp(nil)
	if e < -300 {
		half := bigNew(prec).Mul(x, x)
		half.SetMantExp(half, -1)
		return half.Sub(x, half)
	}
	if e < 0 {
		e = -e
	}
	p := prec + uint(e) + 64
	return bigLog(prec, bigNew(p).Add(bigInt(p, 1), x))
}

// bigSinCos returns the sine and the cosine of x.
func bigSinCos(prec uint, x *big.Float) (sin, cos *big.Float) {
	p := prec + 256
	if e := x.MantExp(nil); e > 0 {
		p += uint(e)
	}
	quarter := bigNew(p).SetMantExp(bigPi(p), -1)
	q := bigNew(p).Quo(x, quarter)
	q.Add(q, bigFloat(p, math.Copysign(0.5, q2f(q))))
	n, _ := q.Int(nil)
	r := bigNew(p).Mul(quarter, bigNew(p).SetInt(n))
	r.Sub(bigNew(p).Set(x), r)
	square := bigNew(p).Mul(r, r)
	series := func(first *big.Float, k int64) *big.Float {
		sum := bigNew(p).Set(first)
		term := bigNew(p).Set(first)
		for ; term.Sign() != 0; k += 2 {
			term.Mul(term, square)
			term.Quo(term, bigInt(p, -k*(k+1)))
			if negligible(term, sum, p) {
				break
			}
			sum.Add(sum, term)
		}
		return sum
	}
	s := series(r, 2)
	c := series(bigInt(p, 1), 1)
	switch new(big.Int).And(n, big.NewInt(3)).Int64() {
	case 1:
		s, c = c, s.Neg(s)
	case 2:
		s, c = s.Neg(s), c.Neg(c)
	case 3:
		s, c = c.Neg(c), s
	}
	return bigNew(prec).Set(s), bigNew(prec).Set(c)
}

func q2f(x *big.Float) float64 {
	f, _ := x.Float64()
	return f
}

// bigErf returns the error function of x.
func bigErf(prec uint, x *big.Float) *big.Float {
	p := prec + 64
	v := bigNew(p).Set(x)
	square := bigNew(p).Mul(v, v)
	sum := bigNew(p).Set(v)
	term := bigNew(p).Set(v)
	square.SetMantExp(square, 1)
	for n := int64(1); term.Sign() != 0; n++ {
		term.Mul(term, square)
		term.Quo(term, bigInt(p, 2*n+1))
		if negligible(term, sum, p) {
			break
		}
		sum.Add(sum, term)
	}
	square.SetMantExp(square, -1)
	sum.Mul(sum, bigExp(p, square.Neg(square)))
	sum.SetMantExp(sum, 1)
	return bigNew(prec).Quo(sum, bigNew(p).Sqrt(bigPi(p)))
}

// bigErfc returns 1 - erf(x), with full relative precision in the tail.
func bigErfc(prec uint, x *big.Float) *big.Float {
	p := prec + 16
	f := q2f(x)
	if f > 0 {
		p += uint(1.5*f*f) + 16
	}
	return bigNew(prec).Sub(bigInt(p, 1), bigErf(p, bigNew(p).Set(x)))
}
