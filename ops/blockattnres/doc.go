// Package blockattnres is Block Attention Residuals: a softmax over depth that
// replaces the residual sum of a transformer (Kimi Team, "Attention
// Residuals", arXiv 2603.15031).
//
// For each token (b,t), with the rows v_1..v_L of N finished blocks and, if
// given, a partial block (L = N or N+1):
//
//	rms_l   = sqrt(mean_d(v_ld^2) + eps)
//	k_l     = v_l / rms_l * gamma          (k_l = v_l without RMSNorm)
//	logit_l = scale * (k_l . w)
//	alpha   = softmax over l of logit
//	h       = sum_l alpha_l v_l
//
// [Apply] is one node on a tape, fused where the device can; [Decomposed] is
// the definition written in small ops, whose derivative is that of the ops;
// [Forward] and [Backward] are the operator document's two functions, without a
// tape. The backward, from g = dL/dh, with u = scale * gamma * w:
//
//	da_l = g . v_l
//	ds_l = alpha_l (da_l - sum_j alpha_j da_j)
//	dv_l = alpha_l g + ds_l (u/rms_l - v_l logit_l/(D rms_l^2))
//	q    = sum over b,t,l of ds_l/rms_l v_l
//	dw   = scale * gamma * q,  dgamma = scale * w * q
//
// Without RMSNorm the rms and the second term of dv are left out, u is scale*w
// and q is the sum of ds_l v_l.
//
// # Names
//
// The operator document's names and those here:
//
//	ai_infra_block_attn_res           Forward, Apply
//	ai_infra_block_attn_res_backward  Backward
//	blocks                            Tensors.Blocks, Inputs.Blocks
//	partial_block                     Tensors.PartialBlock, Inputs.PartialBlock
//	proj_weight                       Tensors.ProjWeight, Inputs.ProjWeight
//	rmsnorm_gamma                     Tensors.RMSNormGamma, Inputs.RMSNormGamma
//	scale                             Scale
//	rmsnorm_eps                       Eps
//	enable_rmsnorm=False              WithoutRMSNorm
//	rms_out_flag, alpha_out_flag      Caches.RMS, Caches.Alpha
//	output, rms_cache, alpha_cache    Outputs.H, Outputs.RMS, Outputs.Alpha
//	grad_h                            the argument gradH
//	grad_blocks                       Grads.Blocks
//	grad_partial_block                Grads.PartialBlock
//	grad_proj_weight                  Grads.ProjWeight
//	grad_rmsnorm_gamma                Grads.RMSNormGamma
//
// The document knows bfloat16 and float16; here float32 and float64 work too.
// Caches are float32, for float64 inputs float64.
package blockattnres
