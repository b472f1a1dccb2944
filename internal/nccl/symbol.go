package nccl

// function is an index into table.
type function uint8

type entry struct {
	name  string
	since int // first version with the function, or 0
}

var table []entry

func declare(name string, since int) function {
	table = append(table, entry{name, since})
	return function(len(table) - 1)
}

var (
	getVersion           = declare("ncclGetVersion", 0)
	getErrorString       = declare("ncclGetErrorString", 0)
	getLastError         = declare("ncclGetLastError", 21304)
	getUniqueID          = declare("ncclGetUniqueId", 0)
	commInitRankScalable = declare("ncclCommInitRankScalable", 22304)
	commAbort            = declare("ncclCommAbort", 0)
	commDestroy          = declare("ncclCommDestroy", 0)
	commGetAsyncError    = declare("ncclCommGetAsyncError", 0)
	commCount            = declare("ncclCommCount", 0)
	commCuDevice         = declare("ncclCommCuDevice", 0)
	commUserRank         = declare("ncclCommUserRank", 0)
	commWindowRegister   = declare("ncclCommWindowRegister", VersionWindows)
	commWindowDeregister = declare("ncclCommWindowDeregister", VersionWindows)
	commSuspend          = declare("ncclCommSuspend", VersionSuspend)
	commResume           = declare("ncclCommResume", VersionSuspend)
	createPreMulSum      = declare("ncclRedOpCreatePreMulSum", 0)
	redOpDestroy         = declare("ncclRedOpDestroy", 0)
	groupStart           = declare("ncclGroupStart", 0)
	groupEnd             = declare("ncclGroupEnd", 0)
	allReduce            = declare("ncclAllReduce", 0)
	broadcast            = declare("ncclBroadcast", 0)
	reduce               = declare("ncclReduce", 0)
	allGather            = declare("ncclAllGather", 0)
	reduceScatter        = declare("ncclReduceScatter", 0)
	alltoAll             = declare("ncclAlltoAll", 22803)
	send                 = declare("ncclSend", 0)
	recv                 = declare("ncclRecv", 0)
)
