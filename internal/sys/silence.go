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
	// SilenceLimit is the time after which a TCP connection fails because the other machine's
	// kernel does not answer.
	SilenceLimit = 5 * time.Second
	// probeInterval is the time between probes, and between transmissions of the same data.
	probeInterval = time.Second
	tcpRTOMaxMs   = 44 // TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15
)

var keepAlive = net.KeepAliveConfig{
	Enable: true, Idle: probeInterval, Interval: probeInterval,
	Count: int(SilenceLimit / probeInterval),
}

// Dialer returns a dialer for Unix sockets, and for TCP connections that detect silence.
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

// DetectSilence limits the silence of a TCP connection. It does not change other connections.
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

// limitSilence detects silence while sent data is not acknowledged. The kernel then sends no
// probes.
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

// Silence describes whether the machine at the other end of a TCP connection answers.
type Silence int

const (
	// Answering means that the machine has answered recently.
	Answering Silence = iota
	// Suspect means that a probe or its answer is lost or late.
	Suspect
	// Silent means that the machine has not answered for almost SilenceLimit.
	Silent
)

// SilenceOf returns Answering if the connection is closed or does not use TCP.
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
	return Silent // Four probes are lost. After the fifth, the kernel ends the connection.
}

// IsSilence reports whether err means that the other machine did not answer.
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
