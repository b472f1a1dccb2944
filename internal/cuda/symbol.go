package cuda

// function identifies a C function of libcuda. For example, initialize is 0, and names[0] is the
// name of the C function, "cuInit".
type function uint8

var names []string // by function

// declare adds a C function. It is called only for the variables below.
func declare(name string) function {
	names = append(names, name)
	return function(len(names) - 1)
}

// The C functions that symmem calls. Suffixes such as _v2 mark functions whose parameters have
// changed. C programs do not write most of the suffixes, because macros of cuda.h add them.
//
// Go initialises the variables in this order, so their values are 0, 1, 2 and so on.
var (
	initialize                      = declare("cuInit")
	driverGetVersion                = declare("cuDriverGetVersion")
	getErrorName                    = declare("cuGetErrorName")
	getErrorString                  = declare("cuGetErrorString")
	deviceGetCount                  = declare("cuDeviceGetCount")
	deviceGet                       = declare("cuDeviceGet")
	deviceGetName                   = declare("cuDeviceGetName")
	deviceGetUUID                   = declare("cuDeviceGetUuid")
	deviceGetPCIBusID               = declare("cuDeviceGetPCIBusId")
	deviceTotalMem                  = declare("cuDeviceTotalMem_v2")
	deviceGetAttribute              = declare("cuDeviceGetAttribute")
	deviceCanAccessPeer             = declare("cuDeviceCanAccessPeer")
	deviceGetP2PAttribute           = declare("cuDeviceGetP2PAttribute")
	devicePrimaryCtxRetain          = declare("cuDevicePrimaryCtxRetain")
	devicePrimaryCtxRelease         = declare("cuDevicePrimaryCtxRelease_v2")
	ctxSetCurrent                   = declare("cuCtxSetCurrent")
	ctxGetCurrent                   = declare("cuCtxGetCurrent")
	memGetInfo                      = declare("cuMemGetInfo_v2")
	memGetAddressRange              = declare("cuMemGetAddressRange_v2")
	memGetAllocationGranularity     = declare("cuMemGetAllocationGranularity")
	memAddressReserve               = declare("cuMemAddressReserve")
	memAddressFree                  = declare("cuMemAddressFree")
	memCreate                       = declare("cuMemCreate")
	memRelease                      = declare("cuMemRelease")
	memRetainAllocationHandle       = declare("cuMemRetainAllocationHandle")
	memMap                          = declare("cuMemMap")
	memUnmap                        = declare("cuMemUnmap")
	memSetAccess                    = declare("cuMemSetAccess")
	memExportToShareableHandle      = declare("cuMemExportToShareableHandle")
	memImportFromShareableHandle    = declare("cuMemImportFromShareableHandle")
	memcpyAsync                     = declare("cuMemcpyAsync")
	memsetD8Async                   = declare("cuMemsetD8Async")
	memAllocAsync                   = declare("cuMemAllocAsync")
	memFreeAsync                    = declare("cuMemFreeAsync")
	memAllocHost                    = declare("cuMemAllocHost_v2")
	memFreeHost                     = declare("cuMemFreeHost")
	memHostRegister                 = declare("cuMemHostRegister_v2")
	memHostUnregister               = declare("cuMemHostUnregister")
	memHostGetDevicePointer         = declare("cuMemHostGetDevicePointer_v2")
	streamCreate                    = declare("cuStreamCreate")
	streamDestroy                   = declare("cuStreamDestroy_v2")
	streamQuery                     = declare("cuStreamQuery")
	streamSynchronize               = declare("cuStreamSynchronize")
	streamWaitEvent                 = declare("cuStreamWaitEvent")
	streamWaitValue32               = declare("cuStreamWaitValue32_v2")
	streamWriteValue32              = declare("cuStreamWriteValue32_v2")
	launchHostFunc                  = declare("cuLaunchHostFunc")
	streamBeginCapture              = declare("cuStreamBeginCapture_v2")
	streamEndCapture                = declare("cuStreamEndCapture")
	streamIsCapturing               = declare("cuStreamIsCapturing")
	streamGetCaptureInfo            = declare("cuStreamGetCaptureInfo_v2")
	threadExchangeStreamCaptureMode = declare("cuThreadExchangeStreamCaptureMode")
	eventCreate                     = declare("cuEventCreate")
	eventRecord                     = declare("cuEventRecord")
	eventQuery                      = declare("cuEventQuery")
	eventDestroy                    = declare("cuEventDestroy_v2")
	eventElapsedTime                = declare("cuEventElapsedTime")
	graphInstantiate                = declare("cuGraphInstantiateWithFlags")
	graphLaunch                     = declare("cuGraphLaunch")
	graphExecDestroy                = declare("cuGraphExecDestroy")
	graphDestroy                    = declare("cuGraphDestroy")
	graphAddEventRecord             = declare("cuGraphAddEventRecordNode")
	moduleLoadData                  = declare("cuModuleLoadData")
	moduleGetFunction               = declare("cuModuleGetFunction")
	moduleUnload                    = declare("cuModuleUnload")
	launchKernel                    = declare("cuLaunchKernel")
	launchKernelEx                  = declare("cuLaunchKernelEx")
	// The following functions are optional: some versions of the driver do not have them.
	deviceGetUUID2           = declare("cuDeviceGetUuid_v2")
	streamGetCaptureInfo3    = declare("cuStreamGetCaptureInfo_v3")
	streamUpdateCapture      = declare("cuStreamUpdateCaptureDependencies")
	streamUpdateCapture2     = declare("cuStreamUpdateCaptureDependencies_v2")
	graphAddDependencies     = declare("cuGraphAddDependencies")
	graphAddDependencies2    = declare("cuGraphAddDependencies_v2")
	graphRemoveDependencies  = declare("cuGraphRemoveDependencies")
	graphRemoveDependencies2 = declare("cuGraphRemoveDependencies_v2")
	moduleGetFunctionCount   = declare("cuModuleGetFunctionCount")
	moduleEnumerateFunctions = declare("cuModuleEnumerateFunctions")
	funcLoad                 = declare("cuFuncLoad")
	userObjectCreate         = declare("cuUserObjectCreate")
	userObjectRelease        = declare("cuUserObjectRelease")
	graphRetainUserObject    = declare("cuGraphRetainUserObject")
)

// firstOptional is the first optional function. All supported drivers have the functions before it.
var firstOptional = deviceGetUUID2
