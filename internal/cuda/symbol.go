package cuda

// function is a function of libcuda, by its place in names.
type function uint8

const (
	initialize function = iota
	driverGetVersion
	getErrorName
	getErrorString
	deviceGetCount
	deviceGet
	deviceGetName
	deviceGetUUID
	deviceGetPCIBusID
	deviceTotalMem
	deviceGetAttribute
	deviceCanAccessPeer
	deviceGetP2PAttribute
	devicePrimaryCtxRetain
	devicePrimaryCtxRelease
	ctxSetCurrent
	ctxGetCurrent
	memGetInfo
	memGetAddressRange
	memGetAllocationGranularity
	memAddressReserve
	memAddressFree
	memCreate
	memRelease
	memRetainAllocationHandle
	memMap
	memUnmap
	memSetAccess
	memExportToShareableHandle
	memImportFromShareableHandle
	memcpyAsync
	memsetD8Async
	memAllocAsync
	memFreeAsync
	memAllocHost
	memFreeHost
	memHostRegister
	memHostUnregister
	memHostGetDevicePointer
	streamCreate
	streamDestroy
	streamQuery
	streamSynchronize
	streamWaitEvent
	streamWaitValue32
	streamWriteValue32
	launchHostFunc
	streamBeginCapture
	streamEndCapture
	streamIsCapturing
	streamGetCaptureInfo
	threadExchangeStreamCaptureMode
	eventCreate
	eventRecord
	eventQuery
	eventDestroy
	eventElapsedTime
	graphInstantiate
	graphLaunch
	graphExecDestroy
	graphDestroy
	graphAddEventRecord
	moduleLoadData
	moduleGetFunction
	moduleUnload
	launchKernel
	launchKernelEx

	// Those from here on a driver may lack: they are newer than what Load insists on, or older and
	// have a newer one with another signature.

	deviceGetUUID2
	streamGetCaptureInfo3
	streamUpdateCapture
	streamUpdateCapture2
	graphAddDependencies
	graphAddDependencies2
	graphRemoveDependencies
	graphRemoveDependencies2
	moduleGetFunctionCount
	moduleEnumerateFunctions
	funcLoad
	userObjectCreate
	userObjectRelease
	graphRetainUserObject
	functions
)

// optional is the first function that a driver may lack.
const optional = deviceGetUUID2

// names are the names that libcuda exports. Where cuda.h has a macro that renames a function, the
// new name is the one with the present signature (cuMemAlloc means cuMemAlloc_v2). Variants that
// end in _ptsz or _ptds use another default stream and are not wanted.
var names = [functions]string{
	initialize:                      "cuInit",
	driverGetVersion:                "cuDriverGetVersion",
	getErrorName:                    "cuGetErrorName",
	getErrorString:                  "cuGetErrorString",
	deviceGetCount:                  "cuDeviceGetCount",
	deviceGet:                       "cuDeviceGet",
	deviceGetName:                   "cuDeviceGetName",
	deviceGetUUID:                   "cuDeviceGetUuid",
	deviceGetPCIBusID:               "cuDeviceGetPCIBusId",
	deviceTotalMem:                  "cuDeviceTotalMem_v2",
	deviceGetAttribute:              "cuDeviceGetAttribute",
	deviceCanAccessPeer:             "cuDeviceCanAccessPeer",
	deviceGetP2PAttribute:           "cuDeviceGetP2PAttribute",
	devicePrimaryCtxRetain:          "cuDevicePrimaryCtxRetain",
	devicePrimaryCtxRelease:         "cuDevicePrimaryCtxRelease_v2",
	ctxSetCurrent:                   "cuCtxSetCurrent",
	ctxGetCurrent:                   "cuCtxGetCurrent",
	memGetInfo:                      "cuMemGetInfo_v2",
	memGetAddressRange:              "cuMemGetAddressRange_v2",
	memGetAllocationGranularity:     "cuMemGetAllocationGranularity",
	memAddressReserve:               "cuMemAddressReserve",
	memAddressFree:                  "cuMemAddressFree",
	memCreate:                       "cuMemCreate",
	memRelease:                      "cuMemRelease",
	memRetainAllocationHandle:       "cuMemRetainAllocationHandle",
	memMap:                          "cuMemMap",
	memUnmap:                        "cuMemUnmap",
	memSetAccess:                    "cuMemSetAccess",
	memExportToShareableHandle:      "cuMemExportToShareableHandle",
	memImportFromShareableHandle:    "cuMemImportFromShareableHandle",
	memcpyAsync:                     "cuMemcpyAsync",
	memsetD8Async:                   "cuMemsetD8Async",
	memAllocAsync:                   "cuMemAllocAsync",
	memFreeAsync:                    "cuMemFreeAsync",
	memAllocHost:                    "cuMemAllocHost_v2",
	memFreeHost:                     "cuMemFreeHost",
	memHostRegister:                 "cuMemHostRegister_v2",
	memHostUnregister:               "cuMemHostUnregister",
	memHostGetDevicePointer:         "cuMemHostGetDevicePointer_v2",
	streamCreate:                    "cuStreamCreate",
	streamDestroy:                   "cuStreamDestroy_v2",
	streamQuery:                     "cuStreamQuery",
	streamSynchronize:               "cuStreamSynchronize",
	streamWaitEvent:                 "cuStreamWaitEvent",
	streamWaitValue32:               "cuStreamWaitValue32_v2",
	streamWriteValue32:              "cuStreamWriteValue32_v2",
	launchHostFunc:                  "cuLaunchHostFunc",
	streamBeginCapture:              "cuStreamBeginCapture_v2",
	streamEndCapture:                "cuStreamEndCapture",
	streamIsCapturing:               "cuStreamIsCapturing",
	streamGetCaptureInfo:            "cuStreamGetCaptureInfo_v2",
	threadExchangeStreamCaptureMode: "cuThreadExchangeStreamCaptureMode",
	eventCreate:                     "cuEventCreate",
	eventRecord:                     "cuEventRecord",
	eventQuery:                      "cuEventQuery",
	eventDestroy:                    "cuEventDestroy_v2",
	eventElapsedTime:                "cuEventElapsedTime",
	graphInstantiate:                "cuGraphInstantiateWithFlags",
	graphLaunch:                     "cuGraphLaunch",
	graphExecDestroy:                "cuGraphExecDestroy",
	graphDestroy:                    "cuGraphDestroy",
	graphAddEventRecord:             "cuGraphAddEventRecordNode",
	moduleLoadData:                  "cuModuleLoadData",
	moduleGetFunction:               "cuModuleGetFunction",
	moduleUnload:                    "cuModuleUnload",
	launchKernel:                    "cuLaunchKernel",
	launchKernelEx:                  "cuLaunchKernelEx",
	deviceGetUUID2:                  "cuDeviceGetUuid_v2",
	streamGetCaptureInfo3:           "cuStreamGetCaptureInfo_v3",
	streamUpdateCapture:             "cuStreamUpdateCaptureDependencies",
	streamUpdateCapture2:            "cuStreamUpdateCaptureDependencies_v2",
	graphAddDependencies:            "cuGraphAddDependencies",
	graphAddDependencies2:           "cuGraphAddDependencies_v2",
	graphRemoveDependencies:         "cuGraphRemoveDependencies",
	graphRemoveDependencies2:        "cuGraphRemoveDependencies_v2",
	moduleGetFunctionCount:          "cuModuleGetFunctionCount",
	moduleEnumerateFunctions:        "cuModuleEnumerateFunctions",
	funcLoad:                        "cuFuncLoad",
	userObjectCreate:                "cuUserObjectCreate",
	userObjectRelease:               "cuUserObjectRelease",
	graphRetainUserObject:           "cuGraphRetainUserObject",
}
