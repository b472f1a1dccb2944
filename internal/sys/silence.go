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
	// probeInterval is the time between probes of an idle connection, and the longest time between
	// transmissions of the same data.
	probeInterval = time.Second
	tcpRTOMaxMs   = 44 // TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15
)

// keepAlive makes the kernel probe an idle connection, and end it after SilenceLimit without an
// answer.
var keepAlive = net.KeepAliveConfig{
	Enable: true, Idle: probeInterval, Interval: probeInterval,
	Count: int(SilenceLimit / probeInterval),
}

// Dialer returns a dialer for Unix sockets, and for TCP connections that fail after SilenceLimit
// without an answer of the other machine.
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

// DetectSilence makes a TCP connection fail after SilenceLimit without an answer of the other
// machine. It does not change other connections.
func DetectSilence(conn net.Conn) error {
	tcpConn, isTCP := conn.(*net.TCPConn)
	if !isTCP {
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

// limitSilence makes a connection fail if sent data is not acknowledged within SilenceLimit. While
// data is not acknowledged, the kernel sends no probes.
func limitSilence(conn syscall.RawConn) error {
	var setErr error
	err := conn.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(SilenceLimit/time.Millisecond))
		// Older kernels do not have this option, and retransmit less often.
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

// SilenceOf returns whether the machine at the other end of a connection answers. It returns
// Answering if the connection is closed or does not use TCP.
func SilenceOf(conn net.Conn) Silence {
	tcpConn, isTCP := conn.(*net.TCPConn)
	if !isTCP {
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
