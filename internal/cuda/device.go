package cuda

import (
	"bytes"
	"fmt"

	"symmem/internal/dl"
)

// Device is one GPU. Its methods need no current context.
type Device struct {
	driver  *Driver
	ordinal int32
	handle  int32 // CUdevice
}

// Ordinal is the device's number.
func (v Device) Ordinal() int { return int(v.ordinal) }

// Name returns the vendor's name of the device.
func (v Device) Name() (string, error) {
	text := dl.NewCell([128]byte{})
	err := v.driver.call(deviceGetName, text.Address(), 128, uintptr(v.handle))
	return untilZero(text.Take()), err
}

// PCIBusID is the device's place on the bus, such as 0000:1b:00.0.
func (v Device) PCIBusID() (string, error) {
	text := dl.NewCell([128]byte{})
	err := v.driver.call(deviceGetPCIBusID, text.Address(), 128, uintptr(v.handle))
	return untilZero(text.Take()), err
}

func untilZero(text [128]byte) string {
	before, _, _ := bytes.Cut(text[:], []byte{0})
	return string(before)
}

// UUID names the device everywhere, as nvidia-smi writes it without the prefix. Of a slice of a
// GPU (MIG) it is the slice's if the driver is 11.4 or newer.
func (v Device) UUID() (string, error) {
	f := deviceGetUUID
	if v.driver.symbols[deviceGetUUID2] != 0 {
		f = deviceGetUUID2
	}
	cell := dl.NewCell([16]byte{})
	err := v.driver.call(f, cell.Address(), uintptr(v.handle))
	u := cell.Take()
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), err
}

// TotalMem is the size of the device's memory in bytes.
func (v Device) TotalMem() (int64, error) {
	return made[int64](&v.driver.table, deviceTotalMem, uintptr(v.handle))
}

// Attribute is a property of a device: CUdevice_attribute of cuda.h.
type Attribute int32

// The attributes that symmem reads. Those that end in Supported are 0 or 1.
const (
	AttributeMultiprocessorCount    Attribute = 16
	AttributeComputeMode            Attribute = 20
	AttributeComputeCapabilityMajor Attribute = 75
	AttributeComputeCapabilityMinor Attribute = 76
	AttributeVMMSupported           Attribute = 102 // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	AttributePosixFDSupported       Attribute = 103 // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	AttributeRDMAWithVMMSupported   Attribute = 110 // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	AttributeFabricSupported        Attribute = 128 // HANDLE_TYPE_FABRIC_SUPPORTED
	AttributeMulticastSupported     Attribute = 132 // only reported: multicast stays off
)

// Attribute reads a property. A driver that does not know it gives ErrInvalidValue.
func (v Device) Attribute(attribute Attribute) (int, error) {
	value, err := made[int32](&v.driver.table, deviceGetAttribute, uintptr(attribute),
		uintptr(v.handle))
	return int(value), err
}

// ComputeCapability returns the architecture that code for the device needs, such as 9 and 0.
func (v Device) ComputeCapability() (major, minor int, err error) {
	if major, err = v.Attribute(AttributeComputeCapabilityMajor); err != nil {
		return 0, 0, err
	}
	minor, err = v.Attribute(AttributeComputeCapabilityMinor)
	return major, minor, err
}

// CanAccessPeer reports whether kernels and copies of this device can reach the memory of another.
func (v Device) CanAccessPeer(other Device) (bool, error) {
	can, err := made[int32](&v.driver.table, deviceCanAccessPeer, uintptr(v.handle),
		uintptr(other.handle))
	return can != 0, err
}

// P2PAttribute is a property of a link: CUdevice_P2PAttribute of cuda.h.
type P2PAttribute int32

// The properties of links.
const (
	P2PPerformanceRank       P2PAttribute = 1 // smaller is faster
	P2PNativeAtomicSupported P2PAttribute = 3
)

// P2PAttribute reads a property of the link from this device to another.
func (v Device) P2PAttribute(attribute P2PAttribute, other Device) (int, error) {
	value, err := made[int32](&v.driver.table, deviceGetP2PAttribute, uintptr(attribute),
		uintptr(v.handle), uintptr(other.handle))
	return int(value), err
}

// RetainPrimary returns the device's primary context, the one that the CUDA runtime, PyTorch and
// NCCL use, and makes it if there is none yet, which takes a good part of a second. It does not
// make it current. Each RetainPrimary is paired with one ReleasePrimary.
func (v Device) RetainPrimary() (Context, error) {
	return made[Context](&v.driver.table, devicePrimaryCtxRetain, uintptr(v.handle))
}

// ReleasePrimary takes one RetainPrimary back. The last one destroys the context and all that is
// in it, unless others in the process hold it.
func (v Device) ReleasePrimary() error {
	return v.driver.call(devicePrimaryCtxRelease, uintptr(v.handle))
}
