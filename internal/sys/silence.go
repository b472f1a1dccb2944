package sys

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// SilenceLimit limits how long the machine at the other end of a TCP connection may leave data
	// or a probe unacknowledged. The kernel acknowledges them even for a stopped process.
	SilenceLimit = 5 * time.Second
	// probeInterval is the time between two probes, and the longest time between two transmissions
	// of the same data.
	probeInterval = time.Second
	// optionMaxInterval is TCP_RTO_MAX_MS of linux/tcp.h. Linux has it since version 6.15.
	optionMaxInterval = 44
)

var keepAlive = net.KeepAliveConfig{
	Enable: true, Idle: probeInterval, Interval: probeInterval,
	Count: int(SilenceLimit / probeInterval),
}

// Dialer returns a dialer for TCP connections that end with an error after SilenceLimit, as
// DetectSilence describes. It also connects to Unix sockets.
func Dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: keepAlive,
		Control: func(network, _ string, conn syscall.RawConn) error {
			if network[:3] != "tcp" {
				return nil
			}
			return limitSilence(conn)
		},
	}
}

// DetectSilence makes a TCP connection end with an error if the other machine has not answered for
// SilenceLimit. Other connections are not changed.
func DetectSilence(conn net.Conn) error {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	if err := c.SetKeepAliveConfig(keepAlive); err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return limitSilence(raw)
}

// limitSilence limits how long sent data may stay unacknowledged. Where Linux supports it, data is
// sent again every probeInterval, so that a network that works again is detected soon.
func limitSilence(conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(SilenceLimit/time.Millisecond))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, optionMaxInterval,
			int(probeInterval/time.Millisecond))
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", failed))
}

// Silence describes how long the machine at the other end of a TCP connection has not answered.
// Idle connections are probed every second.
type Silence int

const (
	// Answering means that the machine has answered recently.
	Answering Silence = iota
	// Suspect means that a probe or its answer is lost or late. Within 2 s, the machine answers or
	// the connection becomes Silent.
	Suspect
	// Silent means that the connection will probably end soon, because SilenceLimit is almost over.
	Silent
)

// SilenceOf returns the silence of a connection. Closed connections, and those that do not use TCP,
// are Answering.
func SilenceOf(conn net.Conn) Silence {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return Answering
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return Answering
	}
	var silence time.Duration
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			silence = time.Duration(info.Last_ack_recv) * time.Millisecond
		}
	})
	switch {
	case err != nil || silence < 3*probeInterval/2:
		return Answering
	case silence < SilenceLimit-3*probeInterval/2:
		return Suspect
	}
	return Silent
}

// IsSilence reports whether an error of a TCP connection means that the other machine did not
// answer. A machine answers even if the process at the other end has ended.
func IsSilence(err error) bool {
	for _, silent := range []syscall.Errno{
		syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN,
	} {
		if errors.Is(err, silent) {
			return true
		}
	}
	return false
}
