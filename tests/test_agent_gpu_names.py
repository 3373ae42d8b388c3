# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501
"""Short kernel names: real names, as CUPTI gave them in public traces, and what people call them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from gpustrobe.agent import gpu_names
from gpustrobe.agent.errors import UsageError

H100 = Path(__file__).parent.parent.parent / "shared/data/h100_2gpu_1s.sqlite"

NAMES = (
    # PyTorch: the functor stays
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
     "vectorized_elementwise_kernel<CUDAFunctor_add>", "compute"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul>)",
     "vectorized_elementwise_kernel<MulFunctor>", "compute"),
    ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1} const&)::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(at::TensorIteratorBase&)::{lambda(int)#1})",
     "elementwise_kernel<direct_copy_kernel_cuda>", "compute"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)#1}, std::array<char*, 2ul>)",
     "vectorized_elementwise_kernel<pow_tensor_scalar_kernel_impl>", "compute"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4, 4>)",
     "reduce_kernel<MeanOps>", "compute"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::(anonymous namespace)::ADAM_MODE)0, false>, float const*>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>)",
     "multi_tensor_apply_kernel<FusedAdamMathFunctor>", "compute"),
    ("void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(long)#1}>(int, at::native::arange_cuda_out(c10::Scalar const&)::{lambda(long)#1}, function_traits<long>::result_type*)",
     "elementwise_kernel_with_index<arange_cuda_out>", "compute"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*, float const*, int, int, int, bool const*, int, bool)",
     "softmax_warp_forward", "compute"),
    # cuBLAS
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
     "gemm f32 tn_n 64x256x8", "compute"),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_split_k_kernel__5x_cublas",
     "gemm f32 tn_n 128x128x8 split_k", "compute"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
     "gemm bf16 tn_n 128x128x64", "compute"),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", "compute"),
    ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "compute"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, false, false>(cublasLt::cublasSplitKParams<float>)",
     "cublasLt splitKreduce_kernel", "compute"),
    ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false, false>(int)",
     "gemv2T_kernel_val", "compute"),
    # cuDNN
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nchw_tilesize128x128x32_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn",
     "fprop_implicit_gemm f16 nhwckrsc_nchw 128x128x32", "compute"),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct, float const*)",
     "cudnn bn_fw_tr_1C11_kernel_NCHW", "compute"),
    ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>(int)", "cudnn nchwToNhwcKernel", "compute"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
     "cudnn sdpa sm90 flash fprop 64x128x128", "compute"),
    # flash-attention
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
     "flash_fwd_kernel", "compute"),
    ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, cutlass::half_t>, true>(flash::Flash_bwd_params)",
     "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "compute"),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1> > > > > >(flash::FlashAttnFwdSm90<int>::Params)",
     "FlashAttnFwdSm90", "compute"),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)",
     "fmha_cutlassF_f32_aligned_64x64_rf_sm80", "compute"),
    # CUTLASS
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align8::Params)",
     "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align8", "compute"),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<int> > >(int)",
     "cutlass GemmUniversal", "compute"),
    ("void cutlass::Kernel<cutlass::gemm::kernel::GemmGrouped<int> >(int)", "cutlass GemmGrouped", "compute"),
    # Triton
    ("triton_poi_fused_add_mul_silu_3", "triton_poi_fused_add_mul_silu_3", "compute"),
    ("_fwd_kernel_0d1d2d34d5de6de7c8c9de10de11c", "_fwd_kernel", "compute"),
    ("fused_moe_kernel", "fused_moe_kernel", "compute"),
    # collectives
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl AllReduce_Sum_bf16_RING_LL", "collective"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "nccl AllReduce_RING_LL_Sum_float", "collective"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "nccl SendRecv", "collective"),
    ("ncclSymkDevKernel_AllReduce_AGxLLMC_R(ncclSymkDevWorkArgs const*)", "ncclSymkDevKernel_AllReduce_AGxLLMC_R", "collective"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, __nv_bfloat16*, int, int)",
     "cross_device_reduce_1stage", "collective"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::AllReduceFusionPattern)1, __nv_bfloat16, 8>(int)",
     "allreduce_fusion_kernel_oneshot_lamport", "collective"),
    ("void deep_ep::internode_ll::dispatch<true, 3, 7168>(void*, float*)", "dispatch", "collective"),
    # anything else loses its arguments
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, int)",
     "reshape_and_cache_flash_kernel", "compute"),
    ("saxpy(int, float, float*, float*)", "saxpy", "compute"),
    ("my_kernel", "my_kernel", "compute"),
    ("", "", "compute"),
)  # fmt: skip


@pytest.mark.parametrize(("full", "short", "category"), NAMES, ids=[short or "none" for _, short, _ in NAMES])
def test_short_names(full, short, category):
    name = gpu_names.kernel_name(full)
    assert (name.short, name.category) == (short, category)
    assert name.full == full


def test_a_long_name_is_cut_in_the_middle():
    short = gpu_names.kernel_name("a" * 200 + "b" * 200).short
    assert len(short) == gpu_names.SHORT_LIMIT and short.startswith("aa") and short.endswith("bb") and "…" in short


@pytest.mark.skipif(not H100.exists(), reason="../shared/data/h100_2gpu_1s.sqlite is not there")
def test_all_names_of_a_real_run():
    with sqlite3.connect(H100) as db:
        full = [
            text
            for (text,) in db.execute(
                "select distinct value from StringIds where id in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL)"
            )
        ]
    names = [gpu_names.kernel_name(text) for text in full]
    assert len(names) > 30 and all(0 < len(name.short) <= 80 and "::" not in name.short for name in names)
    assert len({name.short for name in names}) >= 0.7 * len(names)  # they still tell kernels apart
    assert {name.category for name in names} == {"compute"}


def test_names_of_hostile_length_take_no_time():
    for text in ("<" * 32768, "(" * 32768, "a<b(" * 8192, "_0d" * 10000, "at::native::reduce_kernel<" * 1000):
        gpu_names.kernel_name(text)


def test_copies_by_direction_and_memory():
    assert gpu_names.copy_name(1 | 2 << 8 | 3 << 12) == "Memcpy HtoD (pinned)"
    assert gpu_names.copy_name(2 | 3 << 8 | 1 << 12) == "Memcpy DtoH (pageable)"
    assert gpu_names.copy_name(8 | 3 << 8 | 3 << 12) == "Memcpy DtoD"
    assert gpu_names.copy_name(0xFFFF) == "Memcpy unknown direction"


def test_users_rules_come_first(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text("kernels:\n- {match: '^acme::(\\w+)', name: 'ours \\1'}\n- {match: spin, category: collective}\n")
    rules = (*gpu_names.read_rules(file), *gpu_names.RULES)
    assert gpu_names.kernel_name("acme::conv<3>(int)", rules).short == "ours conv"
    spin = gpu_names.kernel_name("void my::spin_barrier<2>(int)", rules)
    assert (spin.short, spin.category) == ("spin_barrier", "collective")
    assert gpu_names.kernel_name("ncclDevKernel_SendRecv(int)", rules).category == "collective"


@pytest.mark.parametrize(
    "text",
    ["kernels: 5", "kernels: [{name: x}]", "kernels: [{match: '('}]", "kernels: [{match: a, category: fun}]",
     "kernels: [{match: a, color: red}]", "kernels: [{match: '(a)', name: '\\2'}]"],
)  # fmt: skip
def test_wrong_rules_are_refused_with_their_place(tmp_path, text):
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"rules.yaml: kernels"):
        gpu_names.read_rules(file)
