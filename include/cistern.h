/*
 * The interface of cistern to addons, in C. It needs Node's headers, and nothing of cistern at link
 * time: an addon finds this folder with require('cistern/include').
 *
 * All functions are for the JavaScript thread of the environment that they are given.
 */
#ifndef CISTERN_H_
#define CISTERN_H_

#include <node_api.h>

#include <stddef.h>
#include <stdint.h>

/*
 * DLPack capsules: Node-API externals with one of these type tags. The data of the external points
 * to a pointer to the tensor (DLManagedTensorVersioned*, or DLManagedTensor* for the second tag).
 * Who consumes the capsule reads that pointer and stores NULL there, on the JavaScript thread, and
 * calls the tensor's deleter when done, on any thread. A capsule that nobody has consumed calls the
 * deleter when it is collected.
 */
static const napi_type_tag cistern_dlpack_versioned_tag = {0x7f1c9bd9b2d64f2bULL, 0x9a3e5f0c61d84ea7ULL};
static const napi_type_tag cistern_dlpack_unversioned_tag = {0x2b8d0c7e94f14a65ULL, 0x8c5790ab3de2f146ULL};

#endif /* CISTERN_H_ */
