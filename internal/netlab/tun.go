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
	tunSetInterface = 0x400454ca // TUNSETIFF
	flagTUN         = 0x0001     // IFF_TUN
	flagNoHeader    = 0x1000     // IFF_NO_PI
)

const tunPath = "/dev/net/tun"

// openTUN creates a TUN device in the calling thread's network namespace. Reading returns the
// packets that the device has sent. Writing delivers packets to it.
func openTUN(name string) (*os.File, error) {
	fd, err := syscall.Open(tunPath, syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", tunPath, err)
	}
	var request [40]byte // struct ifreq
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
