# Flags of single files of compute/: each SIMD tier has its own, nothing else may use them (docs/EXACTNESS.md, 1).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(compute_dir ${CMAKE_SOURCE_DIR}/src/compute)
  # -O3 also in debug builds: kernels without it would make every test a hundred times slower.
  file(GLOB compute_ref ${compute_dir}/cpu/ref/*.c)
  set_source_files_properties(${compute_ref} PROPERTIES COMPILE_OPTIONS "-O3")
  set_source_files_properties(${compute_dir}/cpu/ref/ref_fma.c PROPERTIES COMPILE_OPTIONS "-O3;-msse4.1;-mfma")
  # Without -fno-tree-reassoc gcc turns chains of integer sums into trees and spills every product.
  file(GLOB compute_avx2 ${compute_dir}/cpu/x86/*_avx2.c)
  set_source_files_properties(${compute_avx2} PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c;-fno-tree-reassoc")
  if(TARGET room_compute)
    target_compile_definitions(room_compute PRIVATE COMPUTE_HAS_AVX2)
  endif()
  file(GLOB compute_avx512 ${compute_dir}/cpu/x86/*_avx512vnni.c)
  set_source_files_properties(${compute_avx512} PROPERTIES COMPILE_OPTIONS
                              "-O3;-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-mprefer-vector-width=512")
endif()
