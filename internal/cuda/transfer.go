package cuda

import "symmem/internal/dl"

// MemcpyAsync queues a copy. Addresses are of device or host memory, told apart by their value;
// host memory that is not registered makes the call wait for the copy.
func (d *Driver) MemcpyAsync(dst, src uintptr, bytes int64, stream Stream) error {
	return d.call(memcpyAsync, dst, src, uintptr(bytes), uintptr(stream))
}

// MemRange returns an error unless an address is of memory that the driver has mapped: of a
// device, or of the host and registered.
func (d *Driver) MemRange(address uintptr) error {
	base := dl.NewCell(uintptr(0))
	defer base.Take()
	return d.call(memGetAddressRange, base.Address(), 0, address)
}

// MemsetD8Async queues the filling of device memory with a byte.
func (d *Driver) MemsetD8Async(dst uintptr, value byte, bytes int64, stream Stream) error {
	return d.call(memsetD8Async, dst, uintptr(value), uintptr(bytes), uintptr(stream))
}

// MemAllocHost allocates memory of the host that devices reach directly, at the same address.
func (d *Driver) MemAllocHost(bytes int64) (uintptr, error) {
	address := dl.NewCell(uintptr(0))
	err := d.call(memAllocHost, address.Address(), uintptr(bytes))
	return address.Take(), err
}

// MemFreeHost gives back what MemAllocHost returned. It waits for queued work.
func (d *Driver) MemFreeHost(address uintptr) error { return d.call(memFreeHost, address) }

// HostRegisterFlags say how host memory is registered: CU_MEMHOSTREGISTER_... of cuda.h.
type HostRegisterFlags uint32

// The flags of MemHostRegister, which may be added.
const (
	HostRegisterPortable  HostRegisterFlags = 1 // for all contexts
	HostRegisterDeviceMap HostRegisterFlags = 2 // for kernels, too
	HostRegisterReadOnly  HostRegisterFlags = 8
)

// MemHostRegister pins memory of the host, so that copies to and from it run asynchronously. It
// must not be memory of Go's heap.
func (d *Driver) MemHostRegister(address uintptr, bytes int64, flags HostRegisterFlags) error {
	return d.call(memHostRegister, address, uintptr(bytes), uintptr(flags))
}

// MemHostUnregister takes MemHostRegister back, by the address given there.
func (d *Driver) MemHostUnregister(address uintptr) error {
	return d.call(memHostUnregister, address)
}

// MemHostDevice is where devices find memory of the host that was registered, or is inside of such:
// at the same address on most machines.
func (d *Driver) MemHostDevice(address uintptr) (uintptr, error) {
	device := dl.NewCell(uintptr(0))
	err := d.call(memHostGetDevicePointer, device.Address(), address, 0)
	return device.Take(), err
}

// MemAllocAsync allocates memory in stream order, from the pool of the current device: work that
// the stream is given later may use it. In a capture it becomes a part of the graph.
func (d *Driver) MemAllocAsync(bytes int64, stream Stream) (uintptr, error) {
	address := dl.NewCell(uintptr(0))
	err := d.call(memAllocAsync, address.Address(), uintptr(bytes), uintptr(stream))
	return address.Take(), err
}

// MemFreeAsync gives such memory back in stream order.
func (d *Driver) MemFreeAsync(address uintptr, stream Stream) error {
	return d.call(memFreeAsync, address, uintptr(stream))
}
