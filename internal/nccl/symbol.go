package nccl

// function identifies a function of libnccl by its index in table.
type function uint8

// entry holds a function's name and the first version that has it. The version is 0 for functions
// that all NCCL versions in use have.
type entry struct {
	name  string
	first int
}

var table []entry

// named adds a function to table.
func named(name string, first int) function {
	table = append(table, entry{name, first})
	return function(len(table) - 1)
}

// The functions.
var (
	getVersion           = named("ncclGetVersion", 0)
	getErrorString       = named("ncclGetErrorString", 0)
	getLastError         = named("ncclGetLastError", 21304)
	getUniqueID          = named("ncclGetUniqueId", 0)
	commInitRankScalable = named("ncclCommInitRankScalable", 22304)
	commAbort            = named("ncclCommAbort", 0)
	commGetAsyncError    = named("ncclCommGetAsyncError", 0)
	commCount            = named("ncclCommCount", 0)
	commCuDevice         = named("ncclCommCuDevice", 0)
	commUserRank         = named("ncclCommUserRank", 0)
	commWindowRegister   = named("ncclCommWindowRegister", VersionWindows)
	commWindowDeregister = named("ncclCommWindowDeregister", VersionWindows)
	groupStart           = named("ncclGroupStart", 0)
	groupEnd             = named("ncclGroupEnd", 0)
	allReduce            = named("ncclAllReduce", 0)
	broadcast            = named("ncclBroadcast", 0)
	reduce               = named("ncclReduce", 0)
	allGather            = named("ncclAllGather", 0)
	reduceScatter        = named("ncclReduceScatter", 0)
	alltoAll             = named("ncclAlltoAll", 22803)
	send                 = named("ncclSend", 0)
	recv                 = named("ncclRecv", 0)
)
