package cuda

import (
	"bytes"
	"fmt"

	"symmem/internal/dl"
)

// Device is a GPU or a MIG instance, a slice of a GPU. Its methods need no current context.
type Device struct {
	driver  *Driver
	ordinal int32
	handle  int32 // CUdevice
}

// Ordinal returns the device's number among the visible GPUs, from 0.
func (d Device) Ordinal() int { return int(d.ordinal) }

// textBytes is the maximum size of a name or a PCI address, with its terminating zero byte.
const textBytes = 128

// Name returns the device's product name, such as "NVIDIA H200".
func (d Device) Name() (string, error) {
	text := dl.NewCell([textBytes]byte{})
	err := d.driver.call(deviceGetName, text.Address(), textBytes, uintptr(d.handle))
	return trimNUL(text.Take()), err
}

// PCIBusID returns the device's PCI address, such as 0000:1b:00.0.
func (d Device) PCIBusID() (string, error) {
	text := dl.NewCell([textBytes]byte{})
	err := d.driver.call(deviceGetPCIBusID, text.Address(), textBytes, uintptr(d.handle))
	return trimNUL(text.Take()), err
}

// trimNUL returns the text before the first zero byte.
func trimNUL(text [textBytes]byte) string {
	before, _, _ := bytes.Cut(text[:], []byte{0})
	return string(before)
}

// UUID returns the UUID that nvidia-smi reports, without the prefix "GPU-" or "MIG-", such as
// 8bf0a1c2-5d6e-7f80-9a1b-2c3d4e5f6071. Before CUDA 11.4, a MIG instance has the UUID of its GPU.
func (d Device) UUID() (string, error) {
	getUUID := deviceGetUUID
	if d.driver.has(deviceGetUUID2) { // since CUDA 11.4
		getUUID = deviceGetUUID2
	}

	cell := dl.NewCell([16]byte{})
	err := d.driver.call(getUUID, cell.Address(), uintptr(d.handle))
	uuid := cell.Take()
	return fmt.Sprintf("%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:]), err
}

// TotalMem returns the size of the device's memory in bytes.
func (d Device) TotalMem() (int64, error) {
	return getValue[int64](&d.driver.table, deviceTotalMem, uintptr(d.handle))
}

// Attribute identifies a property of a device (CUdevice_attribute).
type Attribute int32

// The device attributes that symmem reads.
const (
	AttributeMultiprocessorCount    Attribute = 16
	AttributeComputeMode            Attribute = 20
	AttributeComputeCapabilityMajor Attribute = 75
	AttributeComputeCapabilityMinor Attribute = 76
	AttributeVMMSupported           Attribute = 102 // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	AttributePosixFDSupported       Attribute = 103 // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	AttributeRDMAWithVMMSupported   Attribute = 110 // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	AttributeFabricSupported        Attribute = 128 // HANDLE_TYPE_FABRIC_SUPPORTED
	AttributeMulticastSupported     Attribute = 132
)

// Attribute returns the value of an attribute, or ErrInvalidValue if the driver does not know it.
func (d Device) Attribute(attribute Attribute) (int, error) {
	value, err := getValue[int32](&d.driver.table, deviceGetAttribute, uintptr(attribute),
		uintptr(d.handle))
	return int(value), err
}

// ComputeCapability returns the compute capability, such as 9 and 0 for an H200.
func (d Device) ComputeCapability() (major, minor int, err error) {
	major, err = d.Attribute(AttributeComputeCapabilityMajor)
	if err != nil {
		return 0, 0, err
	}

	minor, err = d.Attribute(AttributeComputeCapabilityMinor)
	return major, minor, err
}

// CanAccessPeer reports whether kernels on d can access the memory of peer.
func (d Device) CanAccessPeer(peer Device) (bool, error) {
	canAccess, err := getValue[int32](&d.driver.table, deviceCanAccessPeer, uintptr(d.handle),
		uintptr(peer.handle))
	return canAccess != 0, err
}

// P2PAttribute identifies a property of a link from one device to a peer (CUdevice_P2PAttribute).
type P2PAttribute int32

// The link properties that symmem reads.
const (
	P2PPerformanceRank       P2PAttribute = 1 // lower is faster
	P2PNativeAtomicSupported P2PAttribute = 3 // 1 if atomic instructions work on peer memory
)

// P2PAttribute returns a property of the link from d to peer.
func (d Device) P2PAttribute(attribute P2PAttribute, peer Device) (int, error) {
	value, err := getValue[int32](&d.driver.table, deviceGetP2PAttribute, uintptr(attribute),
		uintptr(d.handle), uintptr(peer.handle))
	return int(value), err
}

// RetainPrimary returns the device's primary context, the CUDA state that all libraries of the
// process share. The first call in the process creates the context, which takes several hundred
// milliseconds. Each call needs a ReleasePrimary.
func (d Device) RetainPrimary() (Context, error) {
	return getValue[Context](&d.driver.table, devicePrimaryCtxRetain, uintptr(d.handle))
}

// ReleasePrimary undoes one RetainPrimary. CUDA destroys the context after the last release in the
// process.
func (d Device) ReleasePrimary() error {
	return d.driver.call(devicePrimaryCtxRelease, uintptr(d.handle))
}
