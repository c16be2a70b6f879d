package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lamina-go/lamina/tensor"
)

// Gradients that are added to what is there have the bits of those that are
// written apart and then added; all others are as without.
func TestBlockAttnResAdds(t *testing.T) {
	dev := newDevice(t, 2)
	r := rand.New(rand.NewPCG(47, 1))
	for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Float16, tensor.Float64} {
		for k, width := range []int{1, 64, 65, 512, 1030} {
			for _, lay := range []layout{dense, reversed} {
				for _, extreme := range []bool{false, true} {
					p := newDepth(r, d, 2, 13, 4+k, width, k%2 == 0, k != 3, 1)
					if extreme { // the careful path
						for i := range p.rows[1] {
							p.rows[1][i] = tensor.Round(d, p.rows[1][i]*map[tensor.DType]float64{tensor.Float16: 1e-7, tensor.BFloat16: 1e30, tensor.Float32: 1e30, tensor.Float64: 1e200}[d])
						}
					}
					what := fmt.Sprintf("%v, width %d, %v, extreme %v", d, width, lay, extreme)
					want, got := p.place(t, dense, d.Wide()), p.place(t, lay, d.Wide())
					want.run(t, dev)
					l := len(p.rows)
					got.grads.Add = make([]bool, l)
					var before [][]float64
					for i := range l {
						got.grads.Add[i] = i%3 != 1
						if got.grads.Add[i] {
							acc := laid(t, lay, d.Wide(), rounded(d.Wide(), numbers(r, 2*13*width, -1, 1)), 2, 13, width)
							if p.partial && i == l-1 {
								got.grads.PartialBlock = acc
							} else {
								got.grads.Blocks[i] = acc
							}
							before = append(before, values(t, acc))
							continue
						}
						before = append(before, nil)
					}
					got.run(t, dev)
					for name, x := range got.results() {
						i := l - 1
						if name != "grad_partial_block" {
							i = slices.IndexFunc(got.grads.Blocks, func(y *tensor.Tensor) bool { return x == y })
						}
						if i < 0 || before[i] == nil || !perToken(name) {
							sameBits(t, what+": "+name, x, want.results()[name])
							continue
						}
						sum := values(t, want.results()[name])
						for k := range sum {
							sum[k] = tensor.Round(d.Wide(), sum[k]+before[i][k])
						}
						sameFloats(t, what+": "+name, values(t, x), sum)
					}
				}
			}
		}
	}
}
