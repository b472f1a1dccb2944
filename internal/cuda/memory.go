package cuda

import (
	"runtime"
	"unsafe"

	"symmem/internal/dl"
)

// Handle is one physical allocation: CUmemGenericAllocationHandle. It has no address until it is
// mapped. The memory lives until the handle is released and every mapping of it, in every
// process, is gone.
type Handle uint64

// HandleTypes are the ways in which an allocation may be handed to another process:
// CUmemAllocationHandleType.
type HandleTypes int32

// The handle types, which may be added.
const (
	HandlePosixFD HandleTypes = 1 // a file descriptor, within one machine
	HandleFabric  HandleTypes = 8 // 64 bytes, within one NVLink fabric
)

// FabricHandle is an allocation handed over as bytes: CUmemFabricHandle.
type FabricHandle [64]byte

// locationDevice is memory of a GPU: CU_MEM_LOCATION_TYPE_DEVICE.
const locationDevice = 1

// Location is where memory is, or who may use it: CUmemLocation, 8 bytes.
type Location struct {
	Type, ID int32
}

// AllocationProp says what memory an allocation is to have: CUmemAllocationProp, 32 bytes with
// the same layout on every 64-bit system.
type AllocationProp struct {
	// Type is CUmemAllocationType: 1, pinned, is the only one.
	Type             int32
	RequestedHandles HandleTypes
	Location         Location
	win32Metadata    uintptr
	// CompressionType is 0 for memory that is not compressible.
	CompressionType uint8
	// GPUDirectRDMACapable is 1 for memory that network cards may read and write.
	GPUDirectRDMACapable uint8
	Usage                uint16
	_                    [4]uint8
}

// PinnedMemory describes memory of a device that may be handed over in the given ways.
func PinnedMemory(device Device, handles HandleTypes, rdma bool) AllocationProp {
	p := AllocationProp{
		Type:             1,
		RequestedHandles: handles,
		Location:         Location{locationDevice, device.handle},
	}
	if rdma {
		p.GPUDirectRDMACapable = 1
	}
	return p
}

// memory has the functions of the driver for memory and its addresses.
type memory struct{ table }

// Granularity is the unit of the sizes and addresses of such allocations in bytes: the smallest
// one that works, or the one that the driver recommends for speed. It needs no context.
func (m *memory) Granularity(prop AllocationProp, recommended bool) (int64, error) {
	size, cell := dl.NewCell(int64(0)), dl.NewCell(prop)
	option := uintptr(0) // CU_MEM_ALLOC_GRANULARITY_MINIMUM
	if recommended {
		option = 1
	}
	err := m.call(memGetAllocationGranularity, size.Address(), cell.Address(), option)
	cell.Take()
	return size.Take(), err
}

// AddressReserve sets aside a range of addresses without memory. The range belongs to no device
// and is the same for all. align is a power of two, or 0 for the driver's choice.
func (m *memory) AddressReserve(bytes, align int64) (uintptr, error) {
	return made[uintptr](&m.table, memAddressReserve, uintptr(bytes), uintptr(align), 0, 0)
}

// AddressFree gives a range back, as it was reserved.
//
// Preconditions: nothing is mapped in it.
func (m *memory) AddressFree(address uintptr, bytes int64) error {
	return m.call(memAddressFree, address, uintptr(bytes))
}

// Create allocates physical memory; bytes is a multiple of the granularity. ErrOutOfMemory says
// that the device has no more.
func (m *memory) Create(bytes int64, prop AllocationProp) (Handle, error) {
	handle, cell := dl.NewCell(Handle(0)), dl.NewCell(prop)
	err := m.call(memCreate, handle.Address(), uintptr(bytes), cell.Address(), 0)
	cell.Take()
	return handle.Take(), err
}

// Release gives a handle back. Mappings stay, and the memory with them.
func (m *memory) Release(handle Handle) error { return m.call(memRelease, uintptr(handle)) }

// Retain returns one more handle of the allocation that is mapped at an address. Release ends it.
func (m *memory) Retain(address uintptr) (Handle, error) {
	return made[Handle](&m.table, memRetainAllocationHandle, address)
}

// Map puts a whole allocation at a reserved address. Nobody may use it before SetAccess.
func (m *memory) Map(address uintptr, bytes int64, handle Handle) error {
	return m.call(memMap, address, uintptr(bytes), 0, uintptr(handle), 0)
}

// Unmap takes a mapping back; the addresses stay reserved. It waits for no work: that of all
// streams on this memory is finished before.
func (m *memory) Unmap(address uintptr, bytes int64) error {
	return m.call(memUnmap, address, uintptr(bytes))
}

// access is CUmemAccessDesc, 12 bytes.
type access struct {
	location Location
	flags    int32
}

// readWrite is CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const readWrite = 3

// SetAccess lets devices read and write a mapped range. It fails for a device that has no peer
// access to where the memory is.
func (m *memory) SetAccess(address uintptr, bytes int64, devices ...Device) error {
	if len(devices) == 0 {
		return nil
	}
	grants := make([]access, len(devices))
	for i, v := range devices {
		grants[i] = access{Location{locationDevice, v.handle}, readWrite}
	}
	err := m.call(memSetAccess, address, uintptr(bytes), dl.AddressOf(&grants[0]),
		uintptr(len(grants)))
	runtime.KeepAlive(grants)
	return err
}

// ExportFD makes a file descriptor of an allocation, for another process of this machine. The
// caller owns it and closes it; it keeps the memory.
func (m *memory) ExportFD(handle Handle) (int, error) {
	fd := dl.NewCell(int32(-1))
	err := m.call(memExportToShareableHandle,
		fd.Address(), uintptr(handle), uintptr(HandlePosixFD), 0)
	return int(fd.Take()), err
}

// ImportFD makes a handle of a file descriptor that another process exported. The descriptor stays
// the caller's, who may close it afterwards.
func (m *memory) ImportFD(fd int) (Handle, error) {
	return m.importHandle(uintptr(fd), HandlePosixFD)
}

// ExportFabric makes bytes of an allocation, for another process on the same NVLink fabric.
func (m *memory) ExportFabric(handle Handle) (FabricHandle, error) {
	return made[FabricHandle](&m.table, memExportToShareableHandle, uintptr(handle),
		uintptr(HandleFabric), 0)
}

// ImportFabric makes a handle of bytes that another process exported.
func (m *memory) ImportFabric(fabric FabricHandle) (Handle, error) {
	cell := dl.NewCell(fabric)
	defer cell.Take()
	return m.importHandle(cell.Address(), HandleFabric)
}

func (m *memory) importHandle(shared uintptr, kind HandleTypes) (Handle, error) {
	return made[Handle](&m.table, memImportFromShareableHandle, shared, uintptr(kind))
}

// The layouts are those of cuda.h, or this does not compile.
var (
	_ [32]byte = [unsafe.Sizeof(AllocationProp{})]byte{}
	_ [12]byte = [unsafe.Sizeof(access{})]byte{}
)

// MemcpyAsync queues a copy. Addresses are of device or host memory, told apart by their value;
// host memory that is not registered makes the call wait for the copy.
func (m *memory) MemcpyAsync(dst, src uintptr, bytes int64, stream Stream) error {
	return m.call(memcpyAsync, dst, src, uintptr(bytes), uintptr(stream))
}

// MemRange returns an error unless an address is of memory that the driver has mapped: of a
// device, or of the host and registered.
func (m *memory) MemRange(address uintptr) error {
	base := dl.NewCell(uintptr(0))
	defer base.Take()
	return m.call(memGetAddressRange, base.Address(), 0, address)
}

// MemsetD8Async queues the filling of device memory with a byte.
func (m *memory) MemsetD8Async(dst uintptr, value byte, bytes int64, stream Stream) error {
	return m.call(memsetD8Async, dst, uintptr(value), uintptr(bytes), uintptr(stream))
}

// MemAllocHost allocates memory of the host that devices reach directly, at the same address.
func (m *memory) MemAllocHost(bytes int64) (uintptr, error) {
	return made[uintptr](&m.table, memAllocHost, uintptr(bytes))
}

// MemFreeHost gives back what MemAllocHost returned. It waits for queued work.
func (m *memory) MemFreeHost(address uintptr) error { return m.call(memFreeHost, address) }

// MemHostRegister pins memory of the host, so that copies to and from it run asynchronously, and
// kernels of all contexts reach it. It must not be memory of Go's heap.
func (m *memory) MemHostRegister(address uintptr, bytes int64) error {
	const portable, deviceMap = 1, 2 // CU_MEMHOSTREGISTER_...
	return m.call(memHostRegister, address, uintptr(bytes), portable|deviceMap)
}

// MemHostUnregister takes MemHostRegister back, by the address given there.
func (m *memory) MemHostUnregister(address uintptr) error {
	return m.call(memHostUnregister, address)
}

// MemHostDevice is where devices find memory of the host that was registered, or is inside of such:
// at the same address on most machines.
func (m *memory) MemHostDevice(address uintptr) (uintptr, error) {
	return made[uintptr](&m.table, memHostGetDevicePointer, address, 0)
}

// MemAllocAsync allocates memory in stream order, from the pool of the current device: work that
// the stream is given later may use it. In a capture it becomes a part of the graph.
func (m *memory) MemAllocAsync(bytes int64, stream Stream) (uintptr, error) {
	return made[uintptr](&m.table, memAllocAsync, uintptr(bytes), uintptr(stream))
}

// MemFreeAsync gives such memory back in stream order.
func (m *memory) MemFreeAsync(address uintptr, stream Stream) error {
	return m.call(memFreeAsync, address, uintptr(stream))
}
