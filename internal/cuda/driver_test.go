package cuda

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"symmem/internal/dl/dltest"
)

// prelude defines the types of cuda.h 12.9 and the functions that the recorder does not generate.
const prelude = `
typedef int CUresult;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle, cuuint64_t;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char bytes[56]; } CUlaunchConfig;
typedef enum { CU_A = 1 } CUdevice_attribute, CUdevice_P2PAttribute, CUstreamCaptureMode,
	CUstreamCaptureStatus;
typedef enum { CU_LOCATION_DEVICE = 1 } CUmemLocationType;
typedef enum { CU_PINNED = 1 } CUmemAllocationType;
typedef enum { CU_POSIX = 1, CU_FABRIC = 8 } CUmemAllocationHandleType;
typedef enum { CU_READWRITE = 3 } CUmemAccess_flags;
typedef enum { CU_RECOMMENDED = 1 } CUmemAllocationGranularity_flags;
typedef struct { CUmemLocationType type; int id; } CUmemLocation;
typedef struct {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; CUmemAccess_flags flags; } CUmemAccessDesc;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef void (*CUhostFn)(void *);

CUresult cuGetErrorName(CUresult error, const char **text) {
	if (error == 12345) return 1;
	*text = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
	return 0;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
	if (error == 12345) return 1;
	*text = error == 2 ? "out of memory" : "other";
	return 0;
}
size_t layout_of_prop(int i) {
	size_t all[] = {
		sizeof(CUmemAllocationProp), offsetof(CUmemAllocationProp, type),
		offsetof(CUmemAllocationProp, requestedHandleTypes),
		offsetof(CUmemAllocationProp, location), offsetof(CUmemAllocationProp, win32HandleMetaData),
		offsetof(CUmemAllocationProp, allocFlags.compressionType),
		offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable),
		offsetof(CUmemAllocationProp, allocFlags.usage),
		sizeof(CUmemAccessDesc), offsetof(CUmemAccessDesc, flags),
	};
	return all[i];
}
void run_host(CUhostFn fn, void *data) { fn(data); }
`

// declarations contains declarations of cuda.h 12.9, with the names that libcuda exports.
const declarations = `
CUresult cuInit(unsigned int Flags)
CUresult cuDriverGetVersion(int *driverVersion)
CUresult cuDeviceGetCount(int *count)
CUresult cuDeviceGet(CUdevice *device, int ordinal)
CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice src,
	CUdevice dst)
CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
CUresult cuCtxSetCurrent(CUcontext ctx)
CUresult cuCtxGetCurrent(CUcontext *pctx)
CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
	CUmemAllocationGranularity_flags option)
CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
	unsigned long long flags)
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
CUresult cuMemExportToShareableHandle(void *shareableHandle,
	CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handleType,
	unsigned long long flags)
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
	CUmemAllocationHandleType shHandleType)
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream)
CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream)
CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
CUresult cuMemFreeHost(void *p)
CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
CUresult cuMemHostUnregister(void *p)
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
CUresult cuStreamDestroy_v2(CUstream hStream)
CUresult cuStreamQuery(CUstream hStream)
CUresult cuStreamSynchronize(CUstream hStream)
CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
CUresult cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus *captureStatus)
CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *status,
	cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
	size_t *numDependencies_out)
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, unsigned int value,
	unsigned int flags)
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, unsigned int value,
	unsigned int flags)
CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags)
CUresult cuEventRecord(CUevent hEvent, CUstream hStream)
CUresult cuEventQuery(CUevent hEvent)
CUresult cuEventDestroy_v2(CUevent hEvent)
CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd)
CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
	unsigned long long flags)
CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream)
CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
CUresult cuGraphDestroy(CUgraph hGraph)
CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph,
	const CUgraphNode *dependencies, size_t numDependencies, CUevent event)
CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
	size_t numDependencies)
CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from,
	const CUgraphNode *to, size_t numDependencies)
CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
	size_t numDependencies, unsigned int flags)
CUresult cuModuleLoadData(CUmodule *module, const void *image)
CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
CUresult cuModuleUnload(CUmodule hmod)
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
	void **extra)
CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
	unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
	unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)`

const newerDeclarations = `
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *status,
	cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
	const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out)
CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
	const CUgraphNode *to, const CUgraphEdgeData *edgeData, size_t numDependencies)
CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from,
	const CUgraphNode *to, const CUgraphEdgeData *edgeData, size_t numDependencies)
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode *dependencies,
	const CUgraphEdgeData *dependencyData, size_t numDependencies, unsigned int flags)`

// load builds and opens a driver whose declared functions record their calls. extra contains the
// C source of additional functions, whose calls are not recorded.
func load(t testing.TB, declarations string, extra ...string) (*Driver, *dltest.Recorder) {
	t.Helper()
	source := dltest.Source(t, prelude+strings.Join(extra, ""), declarations)
	path := dltest.Compile(t, "libcuda.so.1", source)
	recorder := dltest.Open(t, path)
	driver, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}

	return driver, recorder
}

func TestLoadCallsInit(t *testing.T) {
	driver, recorder := load(t, declarations)
	if got := recorder.LastCall(); got.Name != "cuInit" || got.Args[0] != 0 {
		t.Errorf("the last call of Load was %s%v, want cuInit[0]", got.Name, got.Args)
	}

	if filepath.Base(driver.Path()) != "libcuda.so.1" {
		t.Errorf("Path() = %s, want a file named libcuda.so.1", driver.Path())
	}
}

func TestLoadWithoutDriver(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libcuda.so.1")
	t.Setenv(PathVariable, missing)
	_, err := Load()
	if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), missing) {
		t.Errorf("Load() = %v, want ErrNoDriver with the path %s", err, missing)
	}
}

func TestLoadUsesPathVariable(t *testing.T) {
	path := dltest.Compile(t, "libcuda_other.so", dltest.Source(t, prelude, declarations))
	t.Setenv(PathVariable, path)
	driver, err := Load()
	if err != nil {
		t.Fatal(err)
	}

	if driver.Path() != path {
		t.Errorf("Load opened %s, want %s", driver.Path(), path)
	}
}

func TestLoadRejectsOldDriver(t *testing.T) {
	old := strings.ReplaceAll(declarations, "cuMemMap(", "cuMemMapElsewhere(")
	old = strings.ReplaceAll(old, "cuStreamBeginCapture_v2(", "cuStreamBeginCapture(")
	path := dltest.Compile(t, "libcuda_old.so", dltest.Source(t, prelude, old))
	_, err := Load(path)
	if !errors.Is(err, ErrNoDriver) || !errors.Is(err, ErrNotSupported) {
		t.Errorf("Load = %v, want ErrNoDriver and ErrNotSupported", err)
	}

	for _, want := range []string{"has no cuMemMap:", "has no cuStreamBeginCapture_v2:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want an error that contains %q", err, want)
		}
	}
}

func TestLoadWithoutDevice(t *testing.T) {
	path := dltest.Compile(t, "libcuda_empty.so", dltest.Source(t, prelude, declarations))
	dltest.Open(t, path).SetResult(100)
	_, err := Load(path)
	if !errors.Is(err, ErrNoDevice) || errors.Is(err, ErrNoDriver) {
		t.Errorf("Load = %v, want ErrNoDevice", err)
	}
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	if !poolKeepsItems {
		t.Skip("sync.Pool drops items under the race detector")
	}

	driver, recorder := load(t, declarations)
	recorder.Reset()
	params := ParamsOf(&struct{ pointer uintptr }{address})
	for name, call := range map[string]func(){
		"copy":          func() { _ = driver.MemcpyAsync(address, otherAddress, big, stream) },
		"fill":          func() { _ = driver.MemsetD8Async(address, 1, big, stream) },
		"stream query":  func() { _, _ = driver.StreamQuery(stream) },
		"event query":   func() { _, _ = driver.EventQuery(event) },
		"event record":  func() { _ = driver.EventRecord(event, stream) },
		"wait":          func() { _ = driver.StreamWaitEvent(stream, event) },
		"capture state": func() { _, _ = driver.CaptureStatus(stream) },
		"graph launch":  func() { _ = driver.GraphLaunch(1, stream) },
		"context":       func() { _ = driver.SetCurrent(1) },
		"exchange mode": func() { _, _ = driver.ThreadExchangeCaptureMode(CaptureRelaxed) },
		"kernel": func() {
			_ = driver.LaunchKernel(1, 1, 1, stream, &params)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if n := testing.AllocsPerRun(1000, call); n != 0 {
				t.Errorf("got %v allocations per call, want 0", n)
			}
		})
	}
}
