// Package precision judges the numbers of a kernel: whether they are as good as
// those of the plain small operations that it replaces, by the operator
// precision standard for Ascend.
//
// # The triple comparison
//
// Three chains compute from the same inputs: the golden in a higher precision,
// the benchmark by the same small operations in the tensor's own dtype, and the
// kernel. Over the elements whose |golden| is at least the dtype's small-value
// threshold, with a a chain's number and g the golden,
//
//	RE   = |a-g| / (|g| + 1e-7)
//	MARE = max RE,  MERE = mean RE,  RMSE = sqrt(mean (a-g)^2)
//
// and the kernel's metric is divided by the larger of the benchmark's and the
// threshold. Of the elements below the threshold those are counted whose |a-g|
// is beyond the dtype's small-value error; the kernel's count is divided by the
// larger of the benchmark's and 1. [Level] has the limits of the ratios,
// [Format] the thresholds, [Comparison] computes.
//
// A number that is not finite has no error. It is right if it has the class
// (NaN, +Inf, -Inf, finite) of the benchmark, or that of a golden which is not
// finite; wrong if the golden is not finite, the kernel disagrees with it and
// the benchmark does not; and else a matter for a look, see [NonFinite].
//
// A comparison that fails is repeated with new seeds: [Recheck] resamples the
// median of the ratios (Efron, "Bootstrap Methods", 1979) and fails only if the
// lower end of its 95 % interval is beyond the limit.
//
// # With one golden
//
// [CommunityOld] and [CommunityNew] are the forms used where there is no
// benchmark.
//
// # Compatible
//
// [Options].Compatible computes what the operator's published test computes,
// so that its numbers can be compared with published ones: in float32, with
// float32's thresholds whatever the tensors' dtype, without the rule for
// numbers that are not finite, and blind to a NaN among small values. It is for
// comparing, not for deciding.
package precision
