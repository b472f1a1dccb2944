package netlab

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// Constants of linux/if_tun.h.
const (
	tunSetInterface = 0x400454ca // TUNSETIFF, which names a new interface
	flagTUN         = 0x0001     // IFF_TUN: packets are IP packets
	flagNoHeader    = 0x1000     // IFF_NO_PI: no other header precedes them
)

// tunPath is the file that becomes a TUN device when it is opened.
const tunPath = "/dev/net/tun"

// openTUN creates a TUN device, which is a network interface, in the calling thread's network
// namespace. Reading the file returns packets that processes send over the interface. Writing makes
// the interface receive packets.
func openTUN(name string) (*os.File, error) {
	const unusedMode = 0 // The file exists.
	fd, err := syscall.Open(tunPath, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, unusedMode)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", tunPath, err)
	}

	// struct ifreq of C begins with the name, which ends with a zero byte, and the flags.
	var request [40]byte
	copy(request[:syscall.IFNAMSIZ-1], name)
	binary.NativeEndian.PutUint16(request[syscall.IFNAMSIZ:], flagTUN|flagNoHeader)
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), tunSetInterface,
		uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("creating the TUN device %s: %w", name, errno)
	}

	return os.NewFile(uintptr(fd), name), nil
}
