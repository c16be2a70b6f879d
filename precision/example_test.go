package precision_test

import (
	"fmt"

	"github.com/lamina-go/lamina/precision"
)

// Three chains of one output, compared by the thresholds of bfloat16.
func Example() {
	golden := []float64{0.3333, -1.2345, 0.0001, 2.7183}
	benchmark := []float64{0.332, -1.2422, 0.00012, 2.6875} // small operations, each rounded
	kernel := []float64{0.3340, -1.2344, 0.0001, 2.7188}    // the fused operator, rounded once
	c := precision.NewComparison("output", precision.BF16, precision.Options{})
	if err := c.Add(kernel, benchmark, golden); err != nil {
		panic(err)
	}
	r := c.Result()
	fmt.Printf("MARE ratio %.2f, passed at L2: %v\n", r.Ratios.MARE, r.Passed(precision.L2))

	fmt.Println(r.Worst)
	// Output:
	// MARE ratio 0.19, passed at L2: true
	// [0] kernel 0.334, benchmark 0.332, golden 0.3333, error 0.0021
}
