package cpu

import "github.com/lamina-go/lamina/tensor"

// asideRows are a token's gradients that are to be added to what is there: they
// are written to rows of their own, which stay in the caches, and then added.
type asideRows struct {
	bytes []byte
	to    []source // where each gradient is written
	x     []float32
	y, z  []float64
}

// rows are the places of a token's gradients: rows of their own for those to be
// added, in the dtype of the sources.
func (s *asideRows) rows(r *attnRes, to []source, wanted []*tensor.Tensor, add []bool) []source {
	d := r.rows[0].dtype
	row := roundUp(r.width, 32) // elements: what the quick path writes, and whole lines
	if need := len(to) * row * d.Size(); len(s.bytes) < need {
		s.bytes = lines(need)
	}
	s.to = append(s.to[:0], to...)
	for l := range to {
		if add[l] && wanted[l] != nil {
			s.to[l] = source{bytes: s.bytes, dtype: d, at: l * row, sd: 1}
		}
	}
	return s.to
}

// add adds a token's rows to where they belong.
func (s *asideRows) add(r *attnRes, final []source, wanted []*tensor.Tensor, add []bool, b, t int) {
	for l, to := range final {
		if !add[l] || wanted[l] == nil {
			continue
		}
		from, at := s.to[l], to.at+b*to.sb+t*to.st
		if to.dtype == tensor.Float32 && to.sd == 1 && from.dtype != tensor.Float64 {
			x := widened(&operand{bytes: from.bytes, dtype: from.dtype}, grown(&s.x, r.width), r.width, from.at, 1)
			addTo(elems[float32](to.bytes)[at:at+r.width], x)
			continue
		}
		x, y := grown(&s.y, r.width), grown(&s.z, r.width)
		load(x, from.bytes, from.dtype, from.at, 1)
		load(y, to.bytes, to.dtype, at, to.sd)
		addTo(y, x)
		store(to.bytes, to.dtype, at, to.sd, y)
	}
}
