package cuda

// function identifies a function of libcuda by its index in names.
type function uint8

// names lists the names that libcuda exports.
var names []string

// named adds a function to names.
func named(name string) function {
	names = append(names, name)
	return function(len(names) - 1)
}

// The functions. If cuda.h renames a function with a macro, the new name is the one with the
// current signature (cuMemAlloc means cuMemAlloc_v2). Variants that end in _ptsz or _ptds use
// per-thread default streams and are not used.
var (
	initialize                      = named("cuInit")
	driverGetVersion                = named("cuDriverGetVersion")
	getErrorName                    = named("cuGetErrorName")
	getErrorString                  = named("cuGetErrorString")
	deviceGetCount                  = named("cuDeviceGetCount")
	deviceGet                       = named("cuDeviceGet")
	deviceGetName                   = named("cuDeviceGetName")
	deviceGetUUID                   = named("cuDeviceGetUuid")
	deviceGetPCIBusID               = named("cuDeviceGetPCIBusId")
	deviceTotalMem                  = named("cuDeviceTotalMem_v2")
	deviceGetAttribute              = named("cuDeviceGetAttribute")
	deviceCanAccessPeer             = named("cuDeviceCanAccessPeer")
	deviceGetP2PAttribute           = named("cuDeviceGetP2PAttribute")
	devicePrimaryCtxRetain          = named("cuDevicePrimaryCtxRetain")
	devicePrimaryCtxRelease         = named("cuDevicePrimaryCtxRelease_v2")
	ctxSetCurrent                   = named("cuCtxSetCurrent")
	ctxGetCurrent                   = named("cuCtxGetCurrent")
	memGetInfo                      = named("cuMemGetInfo_v2")
	memGetAddressRange              = named("cuMemGetAddressRange_v2")
	memGetAllocationGranularity     = named("cuMemGetAllocationGranularity")
	memAddressReserve               = named("cuMemAddressReserve")
	memAddressFree                  = named("cuMemAddressFree")
	memCreate                       = named("cuMemCreate")
	memRelease                      = named("cuMemRelease")
	memRetainAllocationHandle       = named("cuMemRetainAllocationHandle")
	memMap                          = named("cuMemMap")
	memUnmap                        = named("cuMemUnmap")
	memSetAccess                    = named("cuMemSetAccess")
	memExportToShareableHandle      = named("cuMemExportToShareableHandle")
	memImportFromShareableHandle    = named("cuMemImportFromShareableHandle")
	memcpyAsync                     = named("cuMemcpyAsync")
	memsetD8Async                   = named("cuMemsetD8Async")
	memAllocAsync                   = named("cuMemAllocAsync")
	memFreeAsync                    = named("cuMemFreeAsync")
	memAllocHost                    = named("cuMemAllocHost_v2")
	memFreeHost                     = named("cuMemFreeHost")
	memHostRegister                 = named("cuMemHostRegister_v2")
	memHostUnregister               = named("cuMemHostUnregister")
	memHostGetDevicePointer         = named("cuMemHostGetDevicePointer_v2")
	streamCreate                    = named("cuStreamCreate")
	streamDestroy                   = named("cuStreamDestroy_v2")
	streamQuery                     = named("cuStreamQuery")
	streamSynchronize               = named("cuStreamSynchronize")
	streamWaitEvent                 = named("cuStreamWaitEvent")
	streamWaitValue32               = named("cuStreamWaitValue32_v2")
	streamWriteValue32              = named("cuStreamWriteValue32_v2")
	launchHostFunc                  = named("cuLaunchHostFunc")
	streamBeginCapture              = named("cuStreamBeginCapture_v2")
	streamEndCapture                = named("cuStreamEndCapture")
	streamIsCapturing               = named("cuStreamIsCapturing")
	streamGetCaptureInfo            = named("cuStreamGetCaptureInfo_v2")
	threadExchangeStreamCaptureMode = named("cuThreadExchangeStreamCaptureMode")
	eventCreate                     = named("cuEventCreate")
	eventRecord                     = named("cuEventRecord")
	eventQuery                      = named("cuEventQuery")
	eventDestroy                    = named("cuEventDestroy_v2")
	eventElapsedTime                = named("cuEventElapsedTime")
	graphInstantiate                = named("cuGraphInstantiateWithFlags")
	graphLaunch                     = named("cuGraphLaunch")
	graphExecDestroy                = named("cuGraphExecDestroy")
	graphDestroy                    = named("cuGraphDestroy")
	graphAddEventRecord             = named("cuGraphAddEventRecordNode")
	moduleLoadData                  = named("cuModuleLoadData")
	moduleGetFunction               = named("cuModuleGetFunction")
	moduleUnload                    = named("cuModuleUnload")
	launchKernel                    = named("cuLaunchKernel")
	launchKernelEx                  = named("cuLaunchKernelEx")
	// A driver may lack the following functions: they are newer than the ones that Load requires, or
	// older and replaced by one with another signature.
	deviceGetUUID2           = named("cuDeviceGetUuid_v2")
	streamGetCaptureInfo3    = named("cuStreamGetCaptureInfo_v3")
	streamUpdateCapture      = named("cuStreamUpdateCaptureDependencies")
	streamUpdateCapture2     = named("cuStreamUpdateCaptureDependencies_v2")
	graphAddDependencies     = named("cuGraphAddDependencies")
	graphAddDependencies2    = named("cuGraphAddDependencies_v2")
	graphRemoveDependencies  = named("cuGraphRemoveDependencies")
	graphRemoveDependencies2 = named("cuGraphRemoveDependencies_v2")
	moduleGetFunctionCount   = named("cuModuleGetFunctionCount")
	moduleEnumerateFunctions = named("cuModuleEnumerateFunctions")
	funcLoad                 = named("cuFuncLoad")
	userObjectCreate         = named("cuUserObjectCreate")
	userObjectRelease        = named("cuUserObjectRelease")
	graphRetainUserObject    = named("cuGraphRetainUserObject")
)

// optional is the first function that a driver may lack.
var optional = deviceGetUUID2
