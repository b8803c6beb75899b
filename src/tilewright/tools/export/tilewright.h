// Arrays, types and errors of exported kernels. C and C++.
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_MAX_RANK 8

// Element types. Types of fewer than 8 bits come as TW_UINT8 or TW_INT8, the even index in the
// low bits; their innermost size and the strides then count bytes.
typedef enum tw_dtype {
  TW_FLOAT64, TW_FLOAT32, TW_FLOAT16, TW_BFLOAT16,
  TW_FLOAT8_E4M3FN, TW_FLOAT8_E5M2, TW_FLOAT8_E4M3FNUZ, TW_FLOAT8_E5M2FNUZ, TW_FLOAT8_E8M0FNU,
  TW_INT64, TW_INT32, TW_INT16, TW_INT8, TW_UINT64, TW_UINT32, TW_UINT16, TW_UINT8, TW_BOOL
} tw_dtype;

// An array. Strides count elements; the memory stays the caller's.
typedef struct tw_tensor {
  void *data;
  tw_dtype dtype;
  int32_t rank;
  int64_t shape[TW_MAX_RANK];
  int64_t strides[TW_MAX_RANK];
} tw_tensor;

typedef enum tw_status {
  TW_OK = 0,
  TW_CONTRACT = 1,  // an argument is not what the kernel is declared for; nothing was launched
  TW_MACHINE = 2,   // no code for this GPU or processor; nothing was launched
  TW_DRIVER = 3     // the driver, or the system, refused
} tw_status;

typedef struct CUstream_st *tw_stream;  // a CUstream or cudaStream_t; 0 on the CPU


// A row-major array of `rank` sizes.
static inline tw_tensor tw_array(void *data, tw_dtype dtype, int32_t rank, const int64_t *shape) {
  tw_tensor made;
  int64_t step = 1;
  int32_t axis;
  made.data = data;
  made.dtype = dtype;
  made.rank = rank;
  for (axis = TW_MAX_RANK - 1; axis >= 0; axis--) {
    made.shape[axis] = axis < rank ? shape[axis] : 0;
    made.strides[axis] = axis < rank ? step : 0;
    if (axis < rank) step = (int64_t)((uint64_t)step * (uint64_t)shape[axis]);
  }
  return made;
}

#ifdef __cplusplus
}
#endif
#endif
