# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet's contracts: .proto files, the messages that generate.py generates from them, and their services.

The contract's descriptor defines a service. name: its full name, for an older version.
"""

from types import ModuleType
from typing import Any, Optional

import grpc


def serve(server: Any, contract: ModuleType, service: str, servicer: Any, name: Optional[str] = None) -> None:
    """Register an object that has methods for RPCs of a contract's service; gRPC refuses the missing ones."""
    one, many, handlers = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler, {}
    for method in contract.DESCRIPTOR.services_by_name[service].methods:
        if not hasattr(servicer, method.name):
            continue
        handlers[method.name] = (many if method.server_streaming else one)(
            getattr(servicer, method.name),
            request_deserializer=getattr(contract, method.input_type.name).FromString,
            response_serializer=getattr(contract, method.output_type.name).SerializeToString,
        )
    name = name or contract.DESCRIPTOR.services_by_name[service].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


class Stub:
    """The calls of a contract's service over a channel, each an attribute."""

    def __init__(self, channel: Any, contract: ModuleType, service: str, name: Optional[str] = None):
        for method in contract.DESCRIPTOR.services_by_name[service].methods:
            call = channel.unary_stream if method.server_streaming else channel.unary_unary
            made = call(
                f"/{name or method.containing_service.full_name}/{method.name}",
                request_serializer=getattr(contract, method.input_type.name).SerializeToString,
                response_deserializer=getattr(contract, method.output_type.name).FromString,
            )
            setattr(self, method.name, made)
