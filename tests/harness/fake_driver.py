"""A stand-in for the driver's management library and for torch, as the text of a module."""

DRIVER = """
import ctypes, os, sys, types

class Driver:
    '''The management library of a machine with these GPUs.'''

    calls = []
    gpus = [(9, 0)]
    version = b"580.1"
    names = {(8, 9): b"NVIDIA L40", (9, 0): b"NVIDIA H200"}

    def __getattr__(self, name):
        def call(*args):
            self.calls.append(name)
            if name == "nvmlDeviceGetCount_v2":
                args[0]._obj.value = len(self.gpus)
            elif name == "nvmlDeviceGetHandleByIndex_v2":
                args[1]._obj.value = args[0].value + 1
            elif name == "nvmlDeviceGetCudaComputeCapability":
                args[1]._obj.value, args[2]._obj.value = self.gpus[args[0].value - 1]
            elif name == "nvmlDeviceGetName":
                args[1].value = self.names[self.gpus[args[0].value - 1]]
            elif name == "nvmlSystemGetDriverVersion":
                args[0].value = self.version
            return 0
        return call

class Cuda:
    '''torch.cuda, which counts how often CUDA would start.'''

    started, is_started = 0, False

    def is_initialized(self):
        return self.is_started

    def get_device_capability(self):
        self.started += 1
        return (8, 9)

def library(name):
    if not Driver.gpus:
        raise OSError("no such library")
    return Driver()

ctypes.CDLL = library
cuda = Cuda()
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
"""
