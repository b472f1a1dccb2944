package cuda

import (
	"runtime"
	"unsafe"

	"symmem/internal/dl"
)

// CUDA separates memory from addresses. Suppose that two processes share 2 MiB of device memory:
//
//   - The first process gets a handle for new memory with Create. It reserves addresses with
//     AddressReserve, and maps the memory there with Map. SetAccess lets devices access it.
//   - It exports the handle as a file descriptor with ExportFD, and sends it to the other process.
//   - The second process gets a handle for the same memory with ImportFD, and also maps it.
//
// Arguments and results that C code accesses by pointer are in cells: heap memory, which does not
// move. Take returns the content of a cell and releases it.

// memory calls the functions for memory.
type memory struct{ table }

// Handle refers to physical memory (CUmemGenericAllocationHandle). The memory is freed when all
// processes have released their handles and removed their mappings.
type Handle uint64

// HandleTypes is a set of ways to share memory with another process (CUmemAllocationHandleType).
type HandleTypes int32

// The members of HandleTypes.
const (
	HandlePosixFD HandleTypes = 1 // a file descriptor, within one machine
	HandleFabric  HandleTypes = 8 // 64 bytes, within one NVLink fabric
)

// FabricHandle is a handle that can be sent to another machine (CUmemFabricHandle).
type FabricHandle [64]byte

// Location identifies a device that owns or accesses memory (CUmemLocation).
type Location struct {
	Type int32 // always locationDevice
	ID   int32 // CUdevice
}

const locationDevice = 1 // CU_MEM_LOCATION_TYPE_DEVICE

func deviceLocation(device Device) Location {
	return Location{Type: locationDevice, ID: device.handle}
}

// AllocationProp describes an allocation (CUmemAllocationProp).
type AllocationProp struct {
	Type                 int32       // CUmemAllocationType; always 1, for pinned memory
	RequestedHandles     HandleTypes // ways to share the memory
	Location             Location    // the device that owns the memory
	win32Metadata        uintptr     // not used on Linux
	CompressionType      uint8       // 0 for none
	GPUDirectRDMACapable uint8       // 1 if network cards can access the memory
	Usage                uint16      // 0 for normal memory
	_                    [4]uint8
}

// PinnedMemory returns the properties of device memory that can be shared in the given ways. If
// rdma is true, network cards can access the memory.
func PinnedMemory(device Device, handles HandleTypes, rdma bool) AllocationProp {
	const pinned = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	p := AllocationProp{
		Type:             pinned,
		RequestedHandles: handles,
		Location:         deviceLocation(device),
	}
	if rdma {
		p.GPUDirectRDMACapable = 1
	}

	return p
}

// Granularity returns a size in bytes. The sizes and addresses of allocations must be multiples of
// it. If recommended is true, it returns a larger size, for speed. It needs no CUDA context.
func (m *memory) Granularity(prop AllocationProp, recommended bool) (int64, error) {
	size, propCell := dl.NewCell(int64(0)), dl.NewCell(prop)
	option := uintptr(0) // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	if recommended {
		option = 1 // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
	}

	err := m.call(memGetAllocationGranularity, size.Address(), propCell.Address(), option)
	propCell.Take()
	return size.Take(), err
}

// AddressReserve reserves a range of addresses without memory, and returns its first address.
// align is a power of two, or 0 for the driver's choice.
func (m *memory) AddressReserve(bytes, align int64) (uintptr, error) {
	const anyAddress, noFlags = 0, 0
	return getValue[uintptr](&m.table, memAddressReserve, uintptr(bytes), uintptr(align),
		anyAddress, noFlags)
}

// AddressFree frees a reserved range, which must contain no mappings.
func (m *memory) AddressFree(address uintptr, bytes int64) error {
	return m.call(memAddressFree, address, uintptr(bytes))
}

// Create allocates physical memory. bytes must be a multiple of Granularity.
func (m *memory) Create(bytes int64, prop AllocationProp) (Handle, error) {
	handle, propCell := dl.NewCell(Handle(0)), dl.NewCell(prop)
	const noFlags = 0
	err := m.call(memCreate, handle.Address(), uintptr(bytes), propCell.Address(), noFlags)
	propCell.Take()
	return handle.Take(), err
}

// Release releases a handle. The memory stays allocated while it is mapped.
func (m *memory) Release(handle Handle) error { return m.call(memRelease, uintptr(handle)) }

// Retain returns another handle for the memory at an address. The caller must release it.
func (m *memory) Retain(address uintptr) (Handle, error) {
	return getValue[Handle](&m.table, memRetainAllocationHandle, address)
}

// Map maps a whole allocation at a reserved address. Devices can access it after SetAccess.
func (m *memory) Map(address uintptr, bytes int64, handle Handle) error {
	const offset, noFlags = 0, 0 // CUDA supports only offset 0 in the memory
	return m.call(memMap, address, uintptr(bytes), offset, uintptr(handle), noFlags)
}

// Unmap removes a mapping, but keeps the addresses reserved. It does not wait for queued work, so
// call it after all work that uses the memory has completed.
func (m *memory) Unmap(address uintptr, bytes int64) error {
	return m.call(memUnmap, address, uintptr(bytes))
}

// accessGrant is CUmemAccessDesc: the access of one device.
type accessGrant struct {
	location Location
	flags    int32 // always readWrite
}

const readWrite = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE

// The sizes must match cuda.h. Otherwise, these declarations do not compile.
var (
	_ [32]byte = [unsafe.Sizeof(AllocationProp{})]byte{}
	_ [12]byte = [unsafe.Sizeof(accessGrant{})]byte{}
)

// SetAccess lets devices read and write a mapped range. It fails if one of the devices cannot
// access the memory of the device that owns the range.
func (m *memory) SetAccess(address uintptr, bytes int64, devices ...Device) error {
	if len(devices) == 0 {
		return nil
	}

	grants := make([]accessGrant, len(devices))
	for i, device := range devices {
		grants[i] = accessGrant{location: deviceLocation(device), flags: readWrite}
	}

	err := m.call(memSetAccess, address, uintptr(bytes), dl.AddressOf(&grants[0]),
		uintptr(len(grants)))
	runtime.KeepAlive(grants)
	return err
}

// ExportFD returns a file descriptor with which other processes on this machine can import the
// memory. The memory stays allocated until the caller has closed the descriptor.
func (m *memory) ExportFD(handle Handle) (int, error) {
	fd := dl.NewCell(int32(-1))
	const noFlags = 0
	err := m.call(memExportToShareableHandle, fd.Address(), uintptr(handle),
		uintptr(HandlePosixFD), noFlags)
	return int(fd.Take()), err
}

// ImportFD returns a handle for memory that another process has exported. The caller can then
// close the descriptor.
func (m *memory) ImportFD(fd int) (Handle, error) {
	return m.importHandle(uintptr(fd), HandlePosixFD)
}

// ExportFabric returns a handle with which processes in the same NVLink fabric can import the
// memory, even on other machines.
func (m *memory) ExportFabric(handle Handle) (FabricHandle, error) {
	const noFlags = 0
	return getValue[FabricHandle](&m.table, memExportToShareableHandle, uintptr(handle),
		uintptr(HandleFabric), noFlags)
}

// ImportFabric returns a handle for memory that another process has exported by ExportFabric.
func (m *memory) ImportFabric(fabric FabricHandle) (Handle, error) {
	exported := dl.NewCell(fabric)
	defer exported.Take()
	return m.importHandle(exported.Address(), HandleFabric)
}

// importHandle imports memory. exported is a file descriptor or the address of a FabricHandle.
func (m *memory) importHandle(exported uintptr, handleType HandleTypes) (Handle, error) {
	return getValue[Handle](&m.table, memImportFromShareableHandle, exported, uintptr(handleType))
}

// MemcpyAsync queues a copy between addresses of device or host memory. If the host memory is not
// page-locked, the call waits for the copy.
func (m *memory) MemcpyAsync(dst, src uintptr, bytes int64, stream Stream) error {
	return m.call(memcpyAsync, dst, src, uintptr(bytes), uintptr(stream))
}

// CheckAddress returns an error if an address is neither in device memory nor in page-locked host
// memory.
func (m *memory) CheckAddress(address uintptr) error {
	base := dl.NewCell(uintptr(0))
	defer base.Take()
	const noSizePointer = 0 // the size of the range is not needed
	return m.call(memGetAddressRange, base.Address(), noSizePointer, address)
}

// MemsetD8Async queues an operation that sets bytes of device memory to a value.
func (m *memory) MemsetD8Async(dst uintptr, value byte, bytes int64, stream Stream) error {
	return m.call(memsetD8Async, dst, uintptr(value), uintptr(bytes), uintptr(stream))
}

// MemAllocHost allocates page-locked host memory, which devices access at the same address.
func (m *memory) MemAllocHost(bytes int64) (uintptr, error) {
	return getValue[uintptr](&m.table, memAllocHost, uintptr(bytes))
}

// MemFreeHost waits for queued work and frees memory of MemAllocHost.
func (m *memory) MemFreeHost(address uintptr) error { return m.call(memFreeHost, address) }

// MemHostRegister page-locks host memory outside the Go heap, and lets kernels in all contexts
// access it.
func (m *memory) MemHostRegister(address uintptr, bytes int64) error {
	const (
		portable  = 1 // CU_MEMHOSTREGISTER_PORTABLE: for all contexts
		deviceMap = 2 // CU_MEMHOSTREGISTER_DEVICEMAP: for kernels
	)
	return m.call(memHostRegister, address, uintptr(bytes), portable|deviceMap)
}

// MemHostUnregister undoes MemHostRegister.
func (m *memory) MemHostUnregister(address uintptr) error {
	return m.call(memHostUnregister, address)
}

// MemHostDeviceAddress returns the address at which kernels access registered host memory.
func (m *memory) MemHostDeviceAddress(address uintptr) (uintptr, error) {
	const noFlags = 0
	return getValue[uintptr](&m.table, memHostGetDevicePointer, address, noFlags)
}

// MemAllocAsync allocates memory in stream order: later work of the stream can use it. During a
// capture, the allocation becomes a node of the graph.
func (m *memory) MemAllocAsync(bytes int64, stream Stream) (uintptr, error) {
	return getValue[uintptr](&m.table, memAllocAsync, uintptr(bytes), uintptr(stream))
}

// MemFreeAsync frees memory of MemAllocAsync in stream order, after the stream's earlier work.
func (m *memory) MemFreeAsync(address uintptr, stream Stream) error {
	return m.call(memFreeAsync, address, uintptr(stream))
}
