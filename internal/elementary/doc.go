// Package elementary computes the elementary functions in float64 with the
// same bits on every machine.
//
// The functions of package math may be written in assembly for one processor
// and in Go for the next, and a Go compiler may fuse a product with the
// addition that follows it where the processor has an instruction for that.
// Either changes last bits. Here every product is rounded by an explicit
// conversion, float64(x*y), before it goes anywhere else, only operations with
// one correct result are used (+, -, *, /, square roots and integer
// arithmetic), and every result that is not a number is the same NaN.
//
// Special values follow package math.
package elementary

// mad returns x*y + z with both operations rounded.
func mad(x, y, z float64) float64 { return float64(x*y) + z }

// twoSum returns the rounded sum of a and b and its error, exactly.
func twoSum(a, b float64) (sum, err float64) {
	sum = a + b
	t := sum - a
	return sum, (a - (sum - t)) + (b - t)
}
