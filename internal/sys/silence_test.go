package sys

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSilenceOptionsAreSet(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := Dialer().DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if err := DetectSilence(accepted); err != nil {
		t.Fatal(err)
	}

	for _, conn := range []net.Conn{dialed, accepted} {
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}

		controlErr := raw.Control(func(fd uintptr) {
			for option, want := range map[[2]int]int{
				{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: int(SilenceLimit / time.Millisecond),
				{unix.SOL_SOCKET, unix.SO_KEEPALIVE}:      1,
				{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}:     1,
				{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}:    1,
			} {
				got, err := unix.GetsockoptInt(int(fd), option[0], option[1])
				if err != nil || got != want {
					t.Errorf("GetsockoptInt(%v) = %d, %v; want %d", option, got, err, want)
				}
			}
		})
		if controlErr != nil {
			t.Fatal(controlErr)
		}
	}
}

func TestIsSilence(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ETIMEDOUT:  true,
		syscall.ECONNRESET: false,
		&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.EHOSTUNREACH)}: true,
		fmt.Errorf("reading: %w", net.ErrClosed):                                        false,
	} {
		if got := IsSilence(err); got != want {
			t.Errorf("IsSilence(%v) = %t; want %t", err, got, want)
		}
	}
}
