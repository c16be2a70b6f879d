package cpu

import (
	"testing"
	"unsafe"

	"github.com/lamina-go/lamina/tensor"
)

// The row operations of the quick path on rows that stay in the cache.
func BenchmarkQuickKernels(b *testing.B) {
	const l, n = 26, 512
	k := quickKernelsOf(active, tensor.BFloat16)
	rows, to := make([]unsafe.Pointer, 32), make([]unsafe.Pointer, 32)
	none := make([]uintptr, 32)
	for i := range rows {
		rows[i], to[i] = unsafe.Pointer(&lines(2 * n)[0]), unsafe.Pointer(&lines(2 * n)[0])
	}
	x, u, h, a := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, 32)
	vx, vu, c := make([]float32, 32), make([]float32, 32), make([][4]float32, 32)
	e, key := make([]float64, 32), make([]float64, 32)
	pair := [2]float64{1, 1}
	wide := make([]float64, n)
	for name, run := range map[string]func(){
		"squares": func() { k.squares(&rows[0], &none[0], &x[0], &u[0], l, n, &vx[0], &vu[0]) },
		"dots":    func() { k.dots(&rows[0], &none[0], &x[0], &u[0], l, n, &vx[0], &vu[0]) },
		"mix":     func() { k.mix(&h[0], &rows[0], &none[0], &a[0], l, 0, n, 0, 1) },
		"slopes":  func() { k.slopes(&to[0], &rows[0], &none[0], &x[0], &u[0], &h[0], &c[0], l, 0, n, 0) },
		"narrow":  func() { k.narrow(to[0], &h[0], 1, n) },
		"roots":   func() { k.roots(&vx[0], &vu[0], &pair, 32, &e[0], &key[0]) },
		"exps":    func() { k.exps(&e[0], &key[0], &pair, 32) },
		"add":     func() { k.add(&wide[0], &h[0], n) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				run()
			}
		})
	}
}
