// SPDX-License-Identifier: Apache-2.0
// Invented stacks: kind|name|module or file:line|self weight|group, " > " joins caller and callee, deeper lines are callees.
const rank = (r: number): string => `
P|python3.12|train.py, pid ${41822 + r}
 T|main thread||.01|step > p|<module>|train.py:214|.01 > p|main|train.py:190|.01 > p|train_epoch|train.py:131|.05
  ${r ? "" : `p|next_batch|data.py:61|.03|wait > p|ShardIterator.__next__|data.py:74|.03
   p|collate|data.py:88|.2 > p|pad_and_stack|data.py:103|.15 > n|torch::autograd::THPVariable_stack(_object*, _object*, _object*)|libtorch_python.so|.04 > n|at::_ops::stack::call(c10::ArrayRef<at::Tensor>, long)|libtorch_cpu.so|.03 > n|at::native::cat_serial_kernel(at::Tensor const&, c10::ArrayRef<at::Tensor>, long)|libtorch_cpu.so|.1 > n|__memmove_avx512_unaligned_erms|libc.so.6|.5
    k|asm_exc_page_fault|vmlinux|.06 > k|do_user_addr_fault|vmlinux|.08 > k|handle_mm_fault|vmlinux|.2 > k|clear_huge_page|vmlinux|.7
   p|unpack_tokens|data.py:121|.2 > n|PyArray_FromBuffer|_multiarray_umath.so|.12 > n|_aligned_strided_to_contig|_multiarray_umath.so|.2
   p|shuffle_buffer|data.py:139|.16 > n|_PyList_Extend|python3.12|.1`}
  p|Trainer.step|trainer.py:74|.06
   p|DistributedDataParallel.forward|/usr/lib/python3.12/site-packages/torch/nn/parallel/distributed.py:1643|.05 > p|Transformer.forward|model.py:201|.06 > p|Block.forward|model.py:118|.12
    p|Attention.forward|model.py:74|.1
     p|Linear.forward|/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py:125|.1 > n|torch::autograd::THPVariable_linear|libtorch_python.so|.1 > n|at::_ops::linear::call|libtorch_cpu.so|.1 > n|at::cuda::blas::gemm_and_bias<c10::BFloat16>(bool, bool, long, long)|libtorch_cuda.so|.12 > g|cublasLtMatmul|libcublasLt.so.12|.4 > c|cudaLaunchKernel|libcudart.so.12.4|.2 > c|cuLaunchKernel|libcuda.so.1|.3 > r|libcuda.so.1+0x2a41f0|libcuda.so.1|.5
     p|apply_rotary|model.py:41|.08 > n|at::native::gpu_kernel_impl<at::native::BinaryFunctor<float>>|libtorch_cuda.so|.1 > c|cudaLaunchKernel|libcudart.so.12.4|.2 > c|cuLaunchKernel|libcuda.so.1|.2
    p|MLP.forward|model.py:98|.08 > p|Linear.forward|/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py:125|.1 > n|at::_ops::linear::call|libtorch_cpu.so|.1 > c|cudaLaunchKernel|libcudart.so.12.4|.3 > c|cuLaunchKernel|libcuda.so.1|.3 > k|entry_SYSCALL_64_after_hwframe|vmlinux|.04 > k|__x64_sys_ioctl|vmlinux|.05 > k|nvidia_unlocked_ioctl|nvidia.ko|.3
    p|RMSNorm.forward|model.py:22|.05 > n|at::TensorIteratorBase::build|libtorch_cpu.so|.3
   p|Tensor.backward|/usr/lib/python3.12/site-packages/torch/_tensor.py:581|.02 > n|torch::autograd::Engine::execute|libtorch_cpu.so|.05
   p|AdamW.step|/usr/lib/python3.12/site-packages/torch/optim/adamw.py:243|.04 > p|_multi_tensor_adamw|/usr/lib/python3.12/site-packages/torch/optim/adamw.py:640|.1 > n|at::native::multi_tensor_apply<4, at::native::PointwiseOpFunctor>|libtorch_cuda.so|.2 > c|cudaLaunchKernel|libcudart.so.12.4|.2
   p|log_metrics|train.py:160|.02 > n|at::native::_local_scalar_dense_cuda|libtorch_cuda.so|.04 > c|cudaStreamSynchronize|libcudart.so.12.4|.1${r ? "|wait" : ""} > c|cuStreamSynchronize|libcuda.so.1|1.1 > r|libcuda.so.1+0x31c2b0|libcuda.so.1|.6
 T|pt_autograd_${r}||.01|step > n|torch::autograd::Engine::thread_main|libtorch_cpu.so|.01 > n|torch::autograd::Engine::evaluate_function|libtorch_cpu.so|.08
  n|torch::autograd::generated::AddmmBackward0::apply|libtorch_cpu.so|.1 > n|at::_ops::mm::call|libtorch_cpu.so|.15 > c|cudaLaunchKernel|libcudart.so.12.4|.3 > c|cuLaunchKernel|libcuda.so.1|.3
  n|c10d::Reducer::autograd_hook(unsigned long)|libtorch_cpu.so|.05 > n|c10d::ProcessGroupNCCL::allreduce|libtorch_cuda.so|.06 > x|ncclAllReduce|libnccl.so.2|.1 > c|cuLaunchKernelExC|libcuda.so.1|.1
 T|pin_memory||.01|load > p|_pin_memory_loop|/usr/lib/python3.12/site-packages/torch/utils/data/_utils/pin_memory.py:53|.04 > c|cudaHostAlloc|libcudart.so.12.4|.1`;
export const STACKS = `${rank(0)}${rank(1)}
P|pt_data_worker|train.py, 8 processes||load
 T|pt_data_worker||.001 > p|_worker_loop|/usr/lib/python3.12/site-packages/torch/utils/data/_utils/worker.py:309|.04 > p|fetch|/usr/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py:52|.05 > p|TokenDataset.__getitem__|data.py:34|.12
  p|read_record|data.py:22|.08
   n|ZSTD_decompressStream|libzstd.so.1|.2
    n|ZSTD_decompressSequences_bmi2|libzstd.so.1|1.1
    n|HUF_decompress4X1_usingDTable|libzstd.so.1|.4
   k|entry_SYSCALL_64_after_hwframe|vmlinux|.03 > k|__x64_sys_pread64|vmlinux|.05 > k|vfs_read|vmlinux|.08 > k|nfs_file_read|nfs.ko|.16 > k|filemap_read|vmlinux|.3 > k|copy_page_to_iter|vmlinux|.6
  p|encode_batch|tokenizer.py:71|.1 > n|tokenizers::tokenizer::TokenizerImpl::encode_batch|tokenizers.abi3.so|.16
   n|tokenizers::models::bpe::word::Word::merge_all|tokenizers.abi3.so|.8 > n|alloc::collections::binary_heap::BinaryHeap<T>::pop|tokenizers.abi3.so|.4
   n|onig_search|tokenizers.abi3.so|.5
P|kubelet|, pid 2210||other
 T|kubelet||.01 > n|runtime.mcall|kubelet|.05 > n|runtime.schedule|kubelet|.1 > n|runtime.findRunnable|kubelet|.2
P|gpustrobe|agent, pid 1904||other
 T|drain||.01 > n|gs_drain|core.so|.1
P|kworker/3:1|, 2 processes||other
 T|kworker/3:1||.01 > k|ret_from_fork|vmlinux|.01 > k|kthread|vmlinux|.01 > k|worker_thread|vmlinux|.08 > k|nfs4_xdr_dec_read|nfsv4.ko|.18
P|dcgm-exporter|, pid 3021||other
 T|dcgm-exporter||.01 > n|runtime.cgocall|dcgm-exporter|.05 > k|nvidia_unlocked_ioctl|nvidia.ko|.16`;
