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
	// SilenceLimit is the time after which a TCP connection fails because the other machine has not
	// acknowledged data or a probe. Its kernel does so even if the process is stopped.
	SilenceLimit = 5 * time.Second
	// probeInterval is the time between two probes, and the maximum time between two transmissions
	// of the same data.
	probeInterval = time.Second
	tcpRTOMaxMs   = 44 // the socket option TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15
)

var keepAlive = net.KeepAliveConfig{
	Enable: true, Idle: probeInterval, Interval: probeInterval,
	Count: int(SilenceLimit / probeInterval),
}

// Dialer returns a dialer for Unix sockets, and for TCP with DetectSilence.
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

// DetectSilence makes a TCP connection fail if the other machine has not answered for SilenceLimit.
// It does not change other connections.
func DetectSilence(conn net.Conn) error {
	tcpConn, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	if err := tcpConn.SetKeepAliveConfig(keepAlive); err != nil {
		return err
	}
	rawConn, err := tcpConn.SyscallConn()
	if err != nil {
		return err
	}
	return limitSilence(rawConn)
}

// limitSilence makes a connection fail if sent data is not acknowledged for SilenceLimit. Until
// then, Linux sends the data again every probeInterval.
func limitSilence(conn syscall.RawConn) error {
	var setErr error
	err := conn.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(SilenceLimit/time.Millisecond))
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMaxMs,
			int(probeInterval/time.Millisecond))
	})
	return errors.Join(err, os.NewSyscallError("setsockopt", setErr))
}

// Silence describes whether the machine at the other end of a TCP connection answers. The kernel
// probes an idle connection every second.
type Silence int

const (
	// Answering means that the machine has answered recently.
	Answering Silence = iota
	// Suspect means that a probe or its answer is lost or late.
	Suspect
	// Silent means that the machine has not answered for almost SilenceLimit.
	Silent
)

// SilenceOf returns the Silence of a connection. It returns Answering if the connection is closed
// or does not use TCP.
func SilenceOf(conn net.Conn) Silence {
	tcpConn, ok := conn.(*net.TCPConn)
	if !ok {
		return Answering
	}
	rawConn, err := tcpConn.SyscallConn()
	if err != nil {
		return Answering
	}
	var silence time.Duration
	err = rawConn.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			silence = time.Duration(info.Last_ack_recv) * time.Millisecond
		}
	})
	switch {
	case err != nil || silence < 3*probeInterval/2:
		return Answering
	case silence < SilenceLimit-probeInterval/2:
		return Suspect
	}
	return Silent // 4 probes are lost, and after the fifth, the kernel ends the connection
}

// IsSilence reports whether an error on a TCP connection means that the other machine did not
// answer. If only the other process has exited, its machine still answers.
func IsSilence(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
