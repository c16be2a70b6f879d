package cpu

import (
	"math"
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// The quick path of BlockAttnRes: for rows in 16-bit formats, in float32. Sums
// along a row have 32 lanes for each 1024 elements; the softmax over depth and
// sums over tokens are in float64. It takes a token where float32 neither over-
// nor underflows and where the logits are so small that its roundings are far
// below those of the format; others are left to the path in float64.

// quickKernels are row operations on multiples of 32 elements, in assembly or
// in Go, with the same bits.
type quickKernels struct {
	// v.v and v.u, or v.x and v.u, of each of l rows.
	// What lies at ahead, an address for each row, is fetched into the cache
	// meanwhile: the first n bytes, or in the others as many from at on.
	squares, dots func(rows *unsafe.Pointer, ahead *uintptr, x, u *float32, l, n int, vx, vu *float32)
	// h = c h + sum of a times rows, from element at on; the first product begins it if first is not 0.
	mix func(h *float32, rows *unsafe.Pointer, ahead *uintptr, a *float32, l, at, n int, c float32, first int)
	// to = c0 g + c1 u - c2 v of each row and sum += c3 v, from element at on; past the caches if past is not 0.
	slopes func(to, rows *unsafe.Pointer, ahead *uintptr, g, u, sum *float32, c *[4]float32, l, at, n, past int)

	halfKernels
	roots func(vv, vu *float32, c *[2]float64, n int, rms, key *float64) // sqrt(c0 vv + c1), vu over it
	exps  func(e, x *float64, c *[2]float64, n int)                      // exp(c0 x - c1)
	add   func(sum *float64, x *float32, n int)
	fence func() // after slopes past the caches
}

const (
	quickWidth   = 1 << 15 // the widest rows
	quickLow     = 0x1p-40 // the sum of squares of a row, or of a row of the gradient of h
	quickHigh    = 0x1p40
	quickRoot    = 0x1p28  // an rms, or its reciprocal
	quickScale   = 0x1p10  // the scale
	quickLeast   = 0x1p-90 // a weight that is not 0
	quickDot     = 0x1p-50 // the larger of a row's products with u and with the gradient of h
	quickLanes   = 32
	quickSegment = 1024 // elements that 32 lanes sum before they are joined

	// quickGroup is how many bytes of rows are read between their dot products
	// and their sum: what stays in the second-level cache.
	quickGroup = 384 << 10

	// quickTogether is how many rows' gradients are written together where a
	// token's rows are more than a group.
	quickTogether = 8

	// quickPast is how many bytes of gradients are written past the caches,
	// since they would not be found there later.
	quickPast = 8 << 20
)

// quickNorm bounds scale |u|, the size of the logits: what float32 rounds of
// them is then far below what the format rounds of the result.
func quickNorm(d tensor.DType) float64 {
	if d == tensor.BFloat16 {
		return 16
	}
	return 8
}

// attnQuick is what the tokens of a call share on the quick path.
type attnQuick struct {
	*quickKernels
	u     []float32 // padded with zeros to a multiple of 32
	n     int       // its length
	group int       // rows of a group, a multiple of 8
}

func newAttnQuick(r *attnRes, d tensor.DType) *attnQuick {
	if !d.IsHalf() || !r.norm || r.width > quickWidth || r.outlying {
		return nil
	}
	norm := math.Abs(r.scale) * math.Sqrt(dot(r.u, r.u))
	if !(norm <= quickNorm(d)) || math.Abs(r.scale) > quickScale || !(largest(r.u) <= quickHigh) || r.eps > quickHigh {
		return nil
	}
	q := &attnQuick{quickKernels: quickKernelsOf(active, d), n: (r.width + quickLanes - 1) &^ (quickLanes - 1)}
	q.u = make([]float32, q.n)
	for i, x := range r.u {
		q.u[i] = float32(x)
	}
	q.group = max(8, quickGroup/(2*q.n)&^7)
	return q
}

// quickScratch is one worker's memory on the quick path. Numbers for each source
// are padded to a multiple of 8.
type quickScratch struct {
	h, g, sum     []float32 // n
	row, dump     []byte    // a row that does not lie as the kernels want it; one that nobody wants
	rows, to      []unsafe.Pointer
	first, second []uintptr // where what is read next begins, and its second half
	none          []uintptr // zeros
	vv, vu, a     []float32
	rms, key, e   []float64
	da            []float64
	c             [][4]float32
	pair, top     [2]float64
	ragged        bool // rows are brought to row one by one
}

func (s *quickScratch) fit(l, n int) {
	if len(s.h) < n {
		s.h, s.g, s.sum = make([]float32, n), make([]float32, n), make([]float32, n)
		s.row, s.dump = lines(2*n), lines(2*n)
	}
	if p := (l + 7) &^ 7; len(s.vv) < p {
		s.rows, s.to, s.c = make([]unsafe.Pointer, p), make([]unsafe.Pointer, p), make([][4]float32, p)
		s.first, s.second, s.none = make([]uintptr, p), make([]uintptr, p), make([]uintptr, p)
		for _, x := range []*[]float32{&s.vv, &s.vu, &s.a} {
			*x = make([]float32, p)
		}
		for _, x := range []*[]float64{&s.rms, &s.key, &s.e, &s.da} {
			*x = make([]float64, p)
		}
	}
}

// lines is n bytes that begin a line of the cache.
func lines(n int) []byte {
	b := make([]byte, n+63)
	return b[-uintptr(unsafe.Pointer(&b[0]))&63:][:n]
}

// lies reports whether the kernels can read or write rows where they are.
func (q *attnQuick) lies(rows []source, width int) bool {
	for _, row := range rows {
		if row.sd != 1 {
			return false
		}
	}
	return q.n == width
}

// fetch is where a row is, as the kernels want it: a copy with zeros behind it if need be.
func (q *attnQuick) fetch(s *quickScratch, row source, width, b, t int) unsafe.Pointer {
	if q.n == width && row.sd == 1 {
		return row.pointer(b, t)
	}
	to := elems[uint16](s.row)[:q.n]
	from := elems[uint16](row.bytes)
	at := row.at + b*row.sb + t*row.st
	for i := range width {
		to[i] = from[at+i*row.sd]
	}
	clear(to[width:])
	return unsafe.Pointer(&to[0])
}

// put writes a row from where the kernels left it.
func (q *attnQuick) put(row source, from []byte, width, b, t int) {
	x, to := elems[uint16](from), elems[uint16](row.bytes)
	at := row.at + b*row.sb + t*row.st
	for i := range width {
		to[at+i*row.sd] = x[i]
	}
}

// products sets vx[l] and vu[l] for rows from..to-1 of a token: v.v, or v.g with g, and v.u.
func (q *attnQuick) products(s *quickScratch, rows []source, width, from, to, b, t int, g []float32) {
	run, x := q.squares, &q.u[0]
	if g != nil {
		run, x = q.dots, &g[0]
	}
	if s.ragged {
		for l := from; l < to; l++ {
			s.rows[l] = q.fetch(s, rows[l], width, b, t)
			run(&s.rows[l], &s.none[l], x, &q.u[0], 1, q.n, &s.vv[l], &s.vu[l])
		}
		return
	}
	for l := from; l < to; l++ {
		s.rows[l] = rows[l].pointer(b, t)
	}
	for l := from; l < to; l++ { // the same rows of the next token, or the rows of the next group
		next := uintptr(s.rows[l]) + uintptr(2*rows[l].st)
		if k := l + q.group; len(rows) > q.group {
			next = uintptr(s.rows[l])
			if g == nil && k < len(rows) {
				next = uintptr(rows[k].pointer(b, t))
			}
		}
		s.first[l], s.second[l] = next, next+uintptr(q.n)
	}
	step := max(1, atOnce/q.n)
	for l := from; l < to; l += step {
		run(&s.rows[l], &s.first[l], x, &q.u[0], min(step, to-l), q.n, &s.vv[l], &s.vu[l])
	}
}

// forward computes a token's rms, alpha and h, the latter in sc.h times the
// factor that it returns. It gives false for a token that is not its.
func (q *attnQuick) forward(r *attnRes, sc *attnScratch, b, t int) (float32, bool) {
	s := &sc.quick
	count := len(r.rows)
	top, total := math.Inf(-1), 0.0
	s.pair = [2]float64{1 / float64(r.width), r.eps}
	for from := 0; from < count; from += q.group {
		to := min(from+q.group, count)
		q.products(s, r.rows, r.width, from, to, b, t, nil)
		for _, x := range s.vv[from:to] {
			if !(x >= quickLow && x <= quickHigh) {
				return 0, false
			}
		}
		pad := (to - from + 7) &^ 7 // what is beyond to is nobody's
		q.roots(&s.vv[from], &s.vu[from], &s.pair, pad, &s.rms[from], &s.key[from])
		best := top
		for _, key := range s.key[from:to] {
			best = max(best, r.scale*key)
		}
		s.top = [2]float64{r.scale, best}
		q.exps(&s.e[from], &s.key[from], &s.top, pad)
		factor := 1.0
		if from > 0 && best > top {
			factor = expNear(top - best)
			total = float64(total * factor)
		}
		top = best
		for l := from; l < to; l++ {
			if s.e[l] < quickLeast {
				return 0, false
			}
			total += s.e[l]
			s.a[l] = float32(s.e[l])
		}
		q.mixed(s, r.rows, r.width, from, to, b, t, float32(factor))
		if from > 0 && factor != 1 {
			for l := range from {
				s.e[l] *= factor
			}
		}
	}
	for l := range count {
		sc.rms[l], sc.alpha[l] = s.rms[l], s.e[l]/total
	}
	return float32(1 / total), true
}

// mixed adds rows from..to-1 of a token, times a, to c h.
func (q *attnQuick) mixed(s *quickScratch, rows []source, width, from, to, b, t int, c float32) {
	first := 0
	if from == 0 {
		first = 1
	}
	if s.ragged {
		for l := from; l < to; l++ {
			s.rows[l] = q.fetch(s, rows[l], width, b, t)
			q.mix(&s.h[0], &s.rows[l], &s.none[l], &s.a[l], 1, 0, q.n, c, first)
			first, c = 0, 1
		}
		return
	}
	step := max(64, atOnce/(to-from)&^63)
	for i := 0; i < q.n; i += step {
		q.mix(&s.h[i], &s.rows[from], &s.second[from], &s.a[from], to-from, i, min(step, q.n-i), c, first)
	}
}

// round stores c h as a row of to.
func (q *attnQuick) round(s *quickScratch, to source, width, b, t int, c float32) {
	if q.n == width && to.sd == 1 {
		q.narrow(to.pointer(b, t), &s.h[0], c, q.n)
		return
	}
	q.narrow(unsafe.Pointer(&s.dump[0]), &s.h[0], c, q.n)
	q.put(to, s.dump, width, b, t)
}

// backward writes a token's gradients and adds to the chunk's sum of q; sc.alpha
// and sc.rms are the caches. It gives false for a token that is not its.
func (q *attnQuick) backward(r *attnRes, sc *attnScratch, grad source, to []source, wanted []*tensor.Tensor, sum *partialSum, past, b, t int) bool {
	s := &sc.quick
	count := len(r.rows)
	s.rows[0] = q.fetch(s, grad, r.width, b, t)
	q.widen(&s.g[0], s.rows[0], q.n)
	q.squares(&s.rows[0], &s.none[0], &q.u[0], &q.u[0], 1, q.n, &s.vv[0], &s.vu[0])
	if gg := s.vv[0]; !(gg >= quickLow && gg <= quickHigh) {
		return false
	}
	q.products(s, r.rows, r.width, 0, count, b, t, s.g)
	var mean, total float64
	for l := range count {
		if rms, alpha := sc.rms[l], sc.alpha[l]; !(rms >= 1/quickRoot && rms <= quickRoot) || !(alpha >= quickLeast && alpha <= 2) {
			return false
		}
		s.da[l] = float64(s.vv[l])
		if !(max(math.Abs(s.da[l]), math.Abs(float64(s.vu[l]))) >= quickDot) {
			return false
		}
		mean += float64(sc.alpha[l] * s.da[l])
		total += sc.alpha[l]
	}
	mean /= total
	if mean != mean || math.IsInf(mean, 0) {
		return false
	}
	for l := range count {
		inverse := 1 / sc.rms[l]
		ds := float64(sc.alpha[l] * (s.da[l] - mean))
		along := ds * r.scale * inverse
		key := float64(s.vu[l]) * inverse
		s.c[l] = [4]float32{float32(sc.alpha[l]), float32(along), float32(along * key / float64(r.width) * inverse), float32(ds * inverse)}
	}
	clear(s.sum[:q.n])
	for l := range count {
		s.to[l] = unsafe.Pointer(&s.dump[0])
		if wanted[l] != nil && !s.ragged {
			s.to[l] = to[l].pointer(b, t)
			if uintptr(s.to[l])%64 != 0 {
				past = 0 // such stores need whole lines
			}
		}
	}
	if s.ragged {
		for l := range count {
			s.rows[l] = q.fetch(s, r.rows[l], r.width, b, t)
			q.slopes(&s.to[l], &s.rows[l], &s.none[l], &s.g[0], &q.u[0], &s.sum[0], &s.c[l], 1, 0, q.n, 0)
			if wanted[l] != nil {
				q.put(to[l], s.dump, r.width, b, t)
			}
		}
	} else {
		together := count
		if count > q.group {
			together = quickTogether
		}
		step := max(64, atOnce/together&^63)
		for l := 0; l < count; l += together {
			for i := 0; i < q.n; i += step {
				q.slopes(&s.to[l], &s.rows[l], &s.second[l], &s.g[i], &q.u[i], &s.sum[i], &s.c[l], min(together, count-l), i, min(step, q.n-i), past)
			}
		}
	}
	if sum != nil {
		sum.n++
		if sum.e == nil {
			q.addTo(sum.v, s.sum[:r.width])
		} else {
			for i, x := range s.sum[:r.width] {
				sum.addTo(i, scaledOf(float64(x), 0))
			}
		}
	}
	return true
}

// addTo adds float32 numbers to float64.
func (q *attnQuick) addTo(sum []float64, x []float32) {
	n := len(sum) &^ 31
	if n > 0 {
		q.add(&sum[0], &x[0], n)
	}
	for i := n; i < len(sum); i++ {
		sum[i] += float64(x[i])
	}
}

// The kernels in Go.

// quickPortable allocates; what is fast is in assembly.
func quickPortable(d tensor.DType) *quickKernels {
	k := &quickKernels{roots: quickRoots, exps: quickExps, add: quickAdd, fence: func() {}}
	loadRow := func(v []float32, p unsafe.Pointer, at int) {
		load(v, unsafe.Slice((*byte)(p), 2*(at+len(v))), d, at, 1)
	}
	products := func(rows *unsafe.Pointer, x, u *float32, l, n int, vx, vu *float32, square bool) {
		v, us, xs := make([]float32, quickLanes), at(u, n), at(x, n)
		for i, p := range pointersAt(rows, l) {
			var sx, su float32
			for from := 0; from < n; from += quickSegment {
				var lx, lu [quickLanes]float32
				for j := from; j < min(from+quickSegment, n); j += quickLanes {
					loadRow(v, p, j)
					for k, a := range v {
						other := a
						if !square {
							other = xs[j+k]
						}
						lx[k], lu[k] = fma32(a, other, lx[k]), fma32(a, us[j+k], lu[k])
					}
				}
				sx += quickJoin(&lx)
				su += quickJoin(&lu)
			}
			at(vx, l)[i], at(vu, l)[i] = sx, su
		}
	}
	k.squares = func(rows *unsafe.Pointer, _ *uintptr, x, u *float32, l, n int, vx, vu *float32) {
		products(rows, x, u, l, n, vx, vu, true)
	}
	k.dots = func(rows *unsafe.Pointer, _ *uintptr, x, u *float32, l, n int, vx, vu *float32) {
		products(rows, x, u, l, n, vx, vu, false)
	}
	k.mix = func(h *float32, rows *unsafe.Pointer, _ *uintptr, a *float32, l, from, n int, c float32, first int) {
		hs, v := at(h, n), make([]float32, n)
		for i, p := range pointersAt(rows, l) {
			loadRow(v, p, from)
			f := at(a, l)[i]
			for j, x := range v {
				switch {
				case i == 0 && first != 0:
					hs[j] = f * x
				case i == 0:
					hs[j] = fma32(f, x, float32(c*hs[j]))
				default:
					hs[j] = fma32(f, x, hs[j])
				}
			}
		}
	}
	k.narrow = func(to unsafe.Pointer, h *float32, c float32, n int) {
		v := make([]float32, n)
		for i, x := range at(h, n) {
			v[i] = c * x
		}
		store(unsafe.Slice((*byte)(to), 2*n), d, 0, 1, v)
	}
	k.slopes = func(to, rows *unsafe.Pointer, _ *uintptr, g, u, sum *float32, c *[4]float32, l, from, n, _ int) {
		v, dv, gs, us, ss := make([]float32, n), make([]float32, n), at(g, n), at(u, n), at(sum, n)
		for i, p := range pointersAt(rows, l) {
			loadRow(v, p, from)
			f := unsafe.Slice(c, l)[i]
			for j, x := range v {
				dv[j] = fma32(-f[2], x, fma32(f[1], us[j], float32(f[0]*gs[j])))
				ss[j] = fma32(f[3], x, ss[j])
			}
			store(unsafe.Slice((*byte)(pointersAt(to, l)[i]), 2*(from+n)), d, from, 1, dv)
		}
	}
	k.widen = func(to *float32, from unsafe.Pointer, n int) { loadRow(at(to, n), from, 0) }
	return k
}

// pointersAt is the n pointers from p on.
func pointersAt(p *unsafe.Pointer, n int) []unsafe.Pointer { return unsafe.Slice(p, n) }

// quickJoin adds the upper to the lower half of the lanes until one is left.
func quickJoin(l *[quickLanes]float32) float32 {
	for n := quickLanes / 2; n > 0; n /= 2 {
		for i := range n {
			l[i] += l[n+i]
		}
	}
	return l[0]
}

func quickRoots(vv, vu *float32, c *[2]float64, n int, rms, key *float64) {
	for i := range n {
		root := math.Sqrt(math.FMA(float64(at(vv, n)[i]), c[0], c[1]))
		at(rms, n)[i], at(key, n)[i] = root, float64(at(vu, n)[i])/root
	}
}

func quickExps(e, x *float64, c *[2]float64, n int) {
	for i, v := range at(x, n) {
		at(e, n)[i] = expNear(float64(v*c[0]) - c[1])
	}
}

func quickAdd(sum *float64, x *float32, n int) {
	for i, v := range at(x, n) {
		at(sum, n)[i] += float64(v)
	}
}
